#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// An index of keys in 8 bits, and scores by it: DeepSeek's lightning indexer (DeepSeek-V3.2-Exp, 2025) without its trained projections.
//
// Code of a vector x [head_dim]: a normalised Hadamard rotation in blocks of the largest power of two that divides head_dim, then e4m3 with
// one scale per vector, the smallest power of two that brings the largest number to 448 or less. head_dim bytes and 4 of scale.
constexpr std::int64_t index_key_bytes(std::int64_t head_dim) { return head_dim + 4; }

// Codes of each row's tokens from from[row] on.
struct IndexKeys {
  KvRows kv;
  const std::int32_t* from = nullptr;   // [kv.num_rows] CPU memory
  std::uint8_t* const* code = nullptr;  // [kv.num_rows] each [len, index_key_bytes]
};
// Keys are read in the cache's type, codes written; the rotation takes head_dim * log2(block) additions.
OpCall call(const IndexKeys&);
void run_cpu(const IndexKeys&);

// out[first[s] + i] = sum over query heads j of ReLU(q_j . k_i), q_j and the key of j's KV head as coded, for the first[s + 1] - first[s]
// tokens of sequence s: all of its rows' or none. One score for all heads.
struct IndexScores {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()], the last one of each counts
  const std::uint8_t* const* code = nullptr;
  const std::int64_t* first = nullptr;  // [kv.num_sequences() + 1] CPU memory
  float* out = nullptr;
};
// Codes are read, scores written; 2 operations per channel, and 2 to rectify and add, for each token and query head.
OpCall call(const IndexScores&);
void run_cpu(const IndexScores&);

}  // namespace kvlab
