#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/parted_rows.h"

namespace kvlab {

// Trained maps of a query and of a key to `features` numbers that are not negative, whose product approximates exp(q k / sqrt(d)):
//   phi_q(q) = |g(g(q A1) A2)|,   u = |s1| * g(g(k B1) B2),   phi_k(k) = |u + (u C) * s2|,   g = GELU.
// LESS, Dong et al. 2024, arXiv:2402.09398. phi_q is a query head's, phi_k a KV head's. All null on shapes.
struct StateMaps {
  std::int32_t mid_dim = 0, features = 0;
  const float *a1 = nullptr, *a2 = nullptr;  // [q_heads, head_dim, mid_dim], [q_heads, mid_dim, features]
  const float *b1 = nullptr, *b2 = nullptr;  // [kv_heads, head_dim, mid_dim], [kv_heads, mid_dim, features]
  const float* c = nullptr;                  // [kv_heads, features, features]
  const float *s1 = nullptr, *s2 = nullptr;  // [kv_heads, features]
  // Floats of a row's state: S [features, head_dim], then z [features].
  [[nodiscard]] std::int64_t state_floats(std::int64_t head_dim) const { return features * (head_dim + 1); }
};

// Adds the tokens that left a row to its state: S += phi_k(k) v^T, z += phi_k(k).
struct FoldDropped {
  PartedRows rows;
  StateMaps maps;
  const std::int32_t* line = nullptr;  // [num_rows] row r's state is line line[r]
  float* state = nullptr;              // [*, maps.state_floats(head_dim)] in and out
};
// Dropped keys and values are read, the states of rows that lost tokens read and written, weights (2 bytes each) read once per such row.
OpCall call(const FoldDropped&);
void run_cpu(const FoldDropped&);

// A row's state as tokens that Attend takes: token f has a key of zeros, the value S_f / z_f, and for query q the weight phi_q(q)_f z_f,
// so that attention adds phi_q S to the numerator and phi_q z to the denominator of its softmax.
struct ReadState {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  StateMaps maps;
  const std::int32_t* line = nullptr;
  const std::int32_t* tokens = nullptr;  // [kv.num_rows] maps.features, or 0: the row's state is empty and not read
  const float* state = nullptr;
  const std::int64_t* first = nullptr;  // [kv.num_rows + 1] prefix sums of tokens
  std::int32_t most_queries = 0;        // of a sequence
  float* log_weight = nullptr;          // [first.back(), most_queries, group] out, as Segment::weighed_queries has it
  float* values = nullptr;              // [kv.num_rows * features, head_dim] out
};
// Queries and states are read, weights and values written; weights of the maps (2 bytes each) are read once per row.
OpCall call(const ReadState&);
void run_cpu(const ReadState&);

}  // namespace kvlab
