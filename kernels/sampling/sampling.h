#pragma once

#include <cstdint>

namespace kvlab {

// The next token of each row from logits [rows, vocabulary]: one pass to fp32, one over probabilities, one token id out.
struct SamplingShape {
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t logit_bytes = 2;
};

constexpr std::int64_t bytes(const SamplingShape& s) { return s.rows * (s.vocabulary * (s.logit_bytes + 3 * 4) + 4); }
// scale, exp, add, divide, compare.
constexpr std::int64_t flops(const SamplingShape& s) { return 5 * s.rows * s.vocabulary; }

}  // namespace kvlab
