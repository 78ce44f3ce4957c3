#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// The probe query of ActQKV (Xiao et al. 2025, arXiv:2502.13542) and the budget that follows from its certainty. The paper's abstract gives
// their purpose; the formulas are our definition.
namespace kvlab {

// Keeps the last queries of each sequence, all heads: the one at position t is at index t % capacity.
struct QueryRing {
  std::int32_t num_sequences = 0, width = 0, capacity = 0;  // width: q_heads * head_dim
  const Queries* queries = nullptr;                         // [num_sequences]
  float* const* ring = nullptr;                             // [num_sequences] -> [capacity, width]
};
// Read and written at 2 bytes per value.
OpCall call(const QueryRing&);
void run_cpu(const QueryRing&);
void run_cuda(const QueryRing&, CudaContext&);

// probe = sum_i w_i q_i with w = softmax_i(|q_i - mean q| / deviation), deviation^2 = mean_i |q_i - mean q|^2: queries far from the mean
// count more. The heads of a layer make one vector q_i.
struct ProbeQuery {
  std::int32_t num_sequences = 0, width = 0;
  const std::int32_t* held = nullptr;  // [num_sequences] queries in the ring
  const float* const* ring = nullptr;  // [num_sequences] -> [held, width]
  float* probe = nullptr;              // [num_sequences, width] out
};
// The ring is read once, 6 FLOPs per value.
OpCall call(const ProbeQuery&);
void run_cpu(const ProbeQuery&);
void run_cuda(const ProbeQuery&, CudaContext&);

// Number of units that each row of a layer gets: the average, scaled by the entropy of the layer's unit probabilities (mean over its rows)
// over the mean of the entropies known for the sequence's layers; at most twice the average, at least 1.
struct EntropyShare {
  std::int32_t num_sequences = 0, kv_heads = 1, layer = 0, num_layers = 1;
  const std::int64_t* first = nullptr;  // [rows + 1]
  const float* probabilities = nullptr;
  const std::int32_t* average = nullptr;  // [rows]
  float* const* entropies = nullptr;      // [num_sequences] -> [num_layers], 0: not known yet
  std::int32_t* keep = nullptr;           // [rows] out; rows without units: 0
};
// Probabilities are read once, 4 FLOPs each.
OpCall call(const EntropyShare&);
void run_cpu(const EntropyShare&);
void run_cuda(const EntropyShare&, CudaContext&);  // `keep` is in CPU memory: waits for the stream

}  // namespace kvlab
