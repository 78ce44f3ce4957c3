#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Copies a statistic kept per token (float bits in word `channel`) into scores.
struct WordScores {
  KvRows kv;
  std::int32_t channel = 0;
  float* out = nullptr;  // [kv.total()]
};
OpCall call(const WordScores&);
void run_cpu(const WordScores&);
void run_cuda(const WordScores&, CudaContext&);

}  // namespace kvlab
