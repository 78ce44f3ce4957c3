#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/scorer/qkv_scores/qkv_scores.h"

namespace kvlab {

namespace {

// [q; k; v] of new token t of a sequence.
std::vector<float> input_of(const QkvScores& a, std::int32_t sequence, std::int32_t t) {
  const std::int64_t kv_width = std::int64_t{a.kv.kv_heads} * a.kv.head_dim, q_width = kv_width * a.kv.group;
  const std::int64_t position = a.begin[sequence] + t;
  std::vector<float> x(static_cast<std::size_t>(q_width + 2 * kv_width));
  std::copy_n(a.queries[sequence].data + position * q_width, q_width, x.begin());
  std::copy_n(a.keys[sequence] + position * kv_width, kv_width, x.begin() + q_width);
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    const std::int32_t row = sequence * a.kv.kv_heads + h;
    std::copy_n(a.kv.value(row, a.kv.len[row] - a.appended[sequence] + t), a.kv.head_dim,
                x.begin() + q_width + kv_width + std::int64_t{h} * a.kv.head_dim);
  }
  return x;
}

// [kv_heads]
std::vector<float> scores_of(const QkvScores& a, const std::vector<float>& x) {
  const auto width = static_cast<std::int64_t>(x.size());
  std::vector<float> middle, scores;
  for (std::int64_t m = 0; m < a.mid_dim; ++m) {
    const float z = lane_dot(a.w1 + m * width, x.data(), width);
    middle.push_back(z / (1.0F + std::exp(-z)));
  }
  for (std::int64_t h = 0; h < a.kv.kv_heads; ++h) scores.push_back(lane_dot(a.w2 + h * a.mid_dim, middle.data(), a.mid_dim));
  return scores;
}

}  // namespace

// Token by token, so that a score does not depend on the batch or the chunk of its token.
void run_cpu(const QkvScores& a) {
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    for (std::int32_t t = 0; t < a.new_tokens[s]; ++t) {
      const std::vector<float> scores = scores_of(a, input_of(a, s, t));
      for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
        const std::int32_t row = s * a.kv.kv_heads + h;
        a.kv.word(a.channel, row, a.kv.len[row] - a.appended[s] + t) = std::bit_cast<std::uint32_t>(scores[static_cast<std::size_t>(h)]);
      }
    }
  }
}

}  // namespace kvlab
