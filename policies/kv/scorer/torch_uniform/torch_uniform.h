#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Uniform draws in [0, 1) as torch.rand gives them on a CPU for [kv_heads, n] float32 numbers: MT19937 (Matsumoto and Nishimura 1998) of
// this seed for each sequence, the low 24 bits of each number. On the CPU alone.
struct TorchUniform {
  KvRows kv;
  std::uint32_t seed = 0;
  float* scores = nullptr;  // [kv.total()] out
};
OpCall call(const TorchUniform&);
void run_cpu(const TorchUniform&);

}  // namespace kvlab
