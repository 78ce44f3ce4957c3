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

// The next token of each row, greedily or drawn from softmax(logits / temperature) by the Gumbel-max trick (Gumbel 1954; Maddison, Tarlow
// and Minka 2014, "A* sampling"): the token of the largest logit / temperature + noise, where noise is a pure function of the row's key and
// the token (kernels/model/sampling/gumbel.h). So one pass is enough, a draw depends neither on the order of the computation nor on other
// rows, and the CPU and a GPU pick the same token unless the two largest sums agree to a few roundings. Ties go to the lowest token; NaN is
// never picked; a row of nothing but NaN and -inf gives token 0.
struct Sampling {
  const float* logits = nullptr;       // row r begins at r * stride
  const float* temperature = nullptr;  // [rows]; 0: greedy. Null: all greedy
  const std::uint64_t* key = nullptr;  // [rows] sampling_key(...); not read where greedy
  std::int32_t* token = nullptr;       // [rows] out
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t stride = 0;  // 0: vocabulary
};

constexpr SamplingShape shape(const Sampling& a) { return {a.rows, a.vocabulary, 4}; }
void run_cpu(const Sampling& a);

// Key of the draws that pick the token of a request at a step.
std::uint64_t sampling_key(std::uint64_t seed, std::uint64_t request, std::uint64_t step);

}  // namespace kvlab
