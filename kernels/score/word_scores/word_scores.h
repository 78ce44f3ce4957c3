#pragma once

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

constexpr std::uint32_t kTokenMark = 1;  // in a word

// Scores from the words that policies keep per token, from `channel` on:
//   kFloat  the word's bits as a float
//   kSum    the sum of `words` such floats
//   kMark   -infinity where the word has the mark; other scores, and +infinity, stay
struct WordScores {
  enum class Kind : std::uint8_t { kFloat, kSum, kMark };
  KvRows kv;
  std::int32_t channel = 0;
  Kind kind = Kind::kFloat;
  float* scores = nullptr;  // [kv.total()]
  std::int32_t words = 1;   // of kSum
};
// Words are read, scores written; kSum adds each word, kMark reads the scores and compares twice.
OpCall call(const WordScores&);
void run_cpu(const WordScores&);
void run_cuda(const WordScores&, CudaContext&);

}  // namespace kvlab
