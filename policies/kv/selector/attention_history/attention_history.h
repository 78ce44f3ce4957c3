#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// The attention that blocks of tokens received from the last queries, and a guess of what they receive from the next one.
// AttentionPredictor, Yang et al. 2025, arXiv:2502.04077. A row's history is [blocks, rows]: of block b and query t, in slot t % rows, the
// largest probability of the block's tokens, and of the query heads of the row.
namespace kvlab {

// Appends the last min(count, rows) queries of each sequence to the histories of its rows. Query t goes to slot (start + t) % rows. It sees
// the listed tokens (all without lists) up to its position; the softmax is over these, and blocks without any receive 0.
struct PushBlockAttention {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()]; a count of 0 appends nothing
  const std::int32_t* start = nullptr;  // [kv.num_rows] CPU memory
  const std::int32_t* fresh = nullptr;  // [kv.num_rows] CPU memory, 1: the history is 0 before
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  std::int32_t block_tokens = 16, rows = 64;
  float* const* history = nullptr;  // [kv.num_rows]
};
// Keys are read once per row, a number per block and query is written; 2 FLOPs per channel and 3 for the softmax per query head and token.
OpCall call(const PushBlockAttention&);
void run_cpu(const PushBlockAttention&);

// Scores of blocks [begin[r], begin[r] + first[r + 1] - first[r]). By a network of two convolutions over queries and blocks, 3 x 3 with
// zeros around, 1 -> 16 -> 32, each rectified, the mean over queries, and a product with 32 weights; or without it (conv1 null and
// has_network false) the sum of decay^age times the history.
struct PredictBlocks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] CPU memory
  const std::int32_t* begin = nullptr;  // [num_rows] CPU memory
  const std::int32_t* next = nullptr;   // [num_rows] CPU memory: slot after the latest query's
  std::int32_t rows = 64;
  const float* const* history = nullptr;
  bool has_network = false;
  const float *w1 = nullptr, *b1 = nullptr;  // [16, 3, 3], [16]
  const float *w2 = nullptr, *b2 = nullptr;  // [32, 16, 3, 3], [32]
  const float *w3 = nullptr, *b3 = nullptr;  // [32], [1]
  float decay = 0.9F;
  float* scores = nullptr;
};
// Histories are read, scores written; 2 FLOPs per product.
OpCall call(const PredictBlocks&);
void run_cpu(const PredictBlocks&);

}  // namespace kvlab
