#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Product quantization of keys (Jegou, Douze and Schmid 2011): the channels are cut into parts of equal length, and each part of a key is
// the number of its nearest center. PQCache, Zhang et al. 2024, arXiv:2407.12820.
namespace kvlab {

struct ProductShape {
  std::int32_t parts = 2;
  std::int32_t centers = 64;  // of a part, at most; a row of fewer tokens has one for each
  // Stored bytes of one token's numbers.
  [[nodiscard]] std::int32_t code_bytes() const;
};

// Centers of each row and part by k-means: Lloyd's rounds from tokens spread evenly over [begin[r], end[r]). A center that lost its
// tokens stays where it is; ties go to the lower one.
struct TrainProduct {
  KvRows kv;
  ProductShape shape;
  std::int32_t rounds = 10;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [kv.num_rows] begin >= end: the row is unchanged
  const std::int32_t* centers = nullptr;                // [kv.num_rows] of a part, at most end - begin
  float* const* center = nullptr;                       // [kv.num_rows] -> [parts, centers, head_dim / parts] out
};
// Keys are read once per round; 2 FLOPs per channel, key and center in a round.
OpCall call(const TrainProduct&);
void run_cpu(const TrainProduct&);

// The numbers of tokens [from[r], to[r]).
struct AssignProduct {
  KvRows kv;
  ProductShape shape;
  const std::int32_t *from = nullptr, *to = nullptr;  // [kv.num_rows]
  const std::int32_t* centers = nullptr;              // [kv.num_rows]
  const float* const* center = nullptr;
  std::int32_t* const* code = nullptr;  // [kv.num_rows] -> [to, parts]
};
// Keys and centers are read, numbers written; 2 FLOPs per channel, key and center.
OpCall call(const AssignProduct&);
void run_cpu(const AssignProduct&);

// Attention over tokens begin[r] + i, i < first[r + 1] - first[r], with each part's center in place of the key: the softmax over these
// tokens, summed over the row's query heads.
struct ProductScores {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2;
  ProductShape shape;
  const Queries* queries = nullptr;       // [num_rows / kv_heads], the last one of each counts
  const std::int32_t* centers = nullptr;  // [num_rows]
  const float* const* center = nullptr;
  const std::int32_t* const* code = nullptr;
  const std::int32_t* begin = nullptr;  // [num_rows]
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  float* scores = nullptr;              // [first[num_rows]] out
};
// Centers and numbers are read, scores written; a product with each center per head, then per token and head a look-up for each part and 4
// FLOPs for the softmax.
OpCall call(const ProductScores&);
void run_cpu(const ProductScores&);

}  // namespace kvlab
