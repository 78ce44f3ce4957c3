#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// ActQKV's probe query (Xiao et al. 2025, arXiv:2502.13542) and a budget from its certainty. Our formulas: the abstract gives only their
// purpose.
namespace kvlab {

// The last queries of each sequence: position t at index t % capacity.
struct QueryRing {
  std::int32_t num_sequences = 0, width = 0, capacity = 0;  // width: q_heads * head_dim
  const Queries* queries = nullptr;                         // [num_sequences]
  float* const* ring = nullptr;                             // [num_sequences] -> [capacity, width]
};
OpCall call(const QueryRing&);
void run_cpu(const QueryRing&);
void run_cuda(const QueryRing&, CudaContext&);

// probe = sum_i w_i q_i with w = softmax_i(|q_i - mean q| / deviation), deviation^2 = mean_i |q_i - mean q|^2. The heads of a layer make
// one vector q_i.
struct ProbeQuery {
  std::int32_t num_sequences = 0, width = 0;
  const std::int32_t* held = nullptr;  // [num_sequences] queries in the ring
  const float* const* ring = nullptr;  // [num_sequences] -> [held, width]
  float* probe = nullptr;              // [num_sequences, width] out
};
OpCall call(const ProbeQuery&);
void run_cpu(const ProbeQuery&);
void run_cuda(const ProbeQuery&, CudaContext&);

// Units per row of a layer: the average, scaled by the entropy of the layer's unit probabilities (mean over its rows) over the mean of the
// sequence's known entropies; 1 to twice the average.
struct EntropyShare {
  std::int32_t num_sequences = 0, kv_heads = 1, layer = 0, num_layers = 1;
  const std::int64_t* first = nullptr;  // [rows + 1]
  const float* probabilities = nullptr;
  const std::int32_t* average = nullptr;  // [rows]
  float* const* entropies = nullptr;      // [num_sequences] -> [num_layers], 0: not known yet
  std::int32_t* keep = nullptr;           // [rows] out; rows without units: 0
};
OpCall call(const EntropyShare&);
void run_cpu(const EntropyShare&);
void run_cuda(const EntropyShare&, CudaContext&);  // `keep` is in CPU memory; waits for the stream

}  // namespace kvlab
