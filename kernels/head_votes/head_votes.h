#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace kvlab {

// Votes of a layer's KV heads for each token of a sequence: out[s][i] = sum over its rows r of in[r][i]. Rows of a sequence are
// equally long. TokenSelect, Wu et al. 2024 (soft voting, when `in` holds probabilities).
struct HeadVotes {
  std::int32_t num_sequences = 0, kv_heads = 1;
  const std::int64_t* in_first = nullptr;  // [num_sequences * kv_heads + 1]
  const float* in = nullptr;
  const std::int64_t* first = nullptr;  // [num_sequences + 1]
  float* out = nullptr;
};
// Every score is read once and added, every sum written once.
OpCall call(const HeadVotes&);
void run_cpu(const HeadVotes&);
void run_cuda(const HeadVotes&, CudaContext&);

}  // namespace kvlab
