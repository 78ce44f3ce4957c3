#pragma once

#include <cstdint>

namespace kvlab {

// The next token of each row from logits [rows, vocabulary], in one pass: running maximum and sum of exponentials (Milakov
// and Gimelshein 2018, "Online normalizer calculation for softmax"), one token id out. Penalties and top-p would add passes.
struct SamplingShape {
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t logit_bytes = 2;
};

constexpr std::int64_t bytes(const SamplingShape& s) { return s.rows * (s.vocabulary * s.logit_bytes + 4); }
// scale, compare, subtract, exp, add.
constexpr std::int64_t flops(const SamplingShape& s) { return 5 * s.rows * s.vocabulary; }

}  // namespace kvlab
