#pragma once

#include <bit>
#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

constexpr std::uint32_t kTokenMark = 1;  // in a word

// Scores from the tokens' words, from `channel` on:
//   kFloat  the word's bits as a float
//   kSum    the sum of `words` such floats
//   kMark   -infinity if the word has the mark; other scores, and +infinity, stay
struct WordScores {
  enum class Kind : std::uint8_t { kFloat, kSum, kMark };
  KvRows kv;
  std::int32_t channel = 0;
  Kind kind = Kind::kFloat;
  float* scores = nullptr;  // [kv.total()]
  std::int32_t words = 1;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total(), read = kind == Kind::kMark ? 2 : words;
    return {.op = "word_scores",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = 4 * n * (read + 1),
            .flops = kind == Kind::kFloat ? 0 : n * read};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    float& score = scores[kv.first[row] + i];
    const std::uint32_t* const word = words_of(row, i);
    if (kind == Kind::kMark) {
      if ((*word & kTokenMark) != 0 && score != INFINITY) score = -INFINITY;
    } else {
      score = kind == Kind::kFloat ? std::bit_cast<float>(*word) : 0.0F;
      for (std::int32_t j = 0; kind == Kind::kSum && j < words; ++j) score += std::bit_cast<float>(word[j * kv.pool_tokens]);
    }
  }

 private:
  [[nodiscard]] KVLAB_BODY const std::uint32_t* words_of(std::int64_t row, std::int64_t i) const {
    return kv.words + channel * kv.pool_tokens + kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i));
  }
};
KVLAB_EACH_OP(WordScores)

}  // namespace kvlab
