#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Trained maps of a query and a key to `features` numbers >= 0; their product approximates exp(q k / sqrt(d)); g = GELU:
//   phi_q(q) = |g(g(q A1) A2)|,   u = |s1| * g(g(k B1) B2),   phi_k(k) = |u + (u C) * s2|
// LESS, Dong et al. 2024, arXiv:2402.09398. phi_q is per query head, phi_k per KV head. CPU memory; null on shapes.
struct StateMaps {
  std::int32_t mid_dim = 0, features = 0;
  const float *a1 = nullptr, *a2 = nullptr;  // [q_heads, head_dim, mid_dim], [q_heads, mid_dim, features]
  const float *b1 = nullptr, *b2 = nullptr;  // [kv_heads, head_dim, mid_dim], [kv_heads, mid_dim, features]
  const float* c = nullptr;                  // [kv_heads, features, features]
  const float *s1 = nullptr, *s2 = nullptr;  // [kv_heads, features]
  // S [features, head_dim], then z [features].
  [[nodiscard]] KVLAB_BOTH std::int64_t state_floats(std::int64_t head_dim) const { return features * (head_dim + 1); }
};

// kFold  adds the tokens that left a row: S += phi_k(k) v^T, z += phi_k(k).
// kRead  writes tokens for Attend: token f has a key of zeros, the value S_f / z_f and, for query q, the weight phi_q(q)_f z_f.
struct RowStates {
  enum class Kind : std::uint8_t { kFold, kRead };
  PartedRows parts;  // of kRead only kv
  StateMaps maps;
  const std::int32_t* line = nullptr;  // [num_rows] row r's state is line line[r]
  float* state = nullptr;              // [*, maps.state_floats(head_dim)] of kFold in and out
  Kind kind = Kind::kFold;
  const Queries* queries = nullptr;      // [num_sequences]
  const std::int32_t* tokens = nullptr;  // [num_rows] maps.features, or 0: the state is empty and not read
  const std::int64_t* first = nullptr;
  std::int32_t most_queries = 0;
  float* log_weight = nullptr;  // [first[num_rows], most_queries, group] out, as Segment::weighed_queries
  float* values = nullptr;      // [num_rows * features, head_dim] out
};
// Maps (2 bytes a number) are read once per row.
OpCall call(const RowStates&);
void run_cpu(const RowStates&);
void run_cuda(const RowStates&, CudaContext&);  // copies the maps to the device at each call

}  // namespace kvlab
