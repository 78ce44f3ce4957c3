#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores of blocks [begin[r], begin[r] + first[r + 1] - first[r]): two convolutions over queries and blocks, 3 x 3 with zeros around, 1 ->
// 16 -> 32, each rectified, the mean over queries, and a product with 32 weights; or (has_network false) the sum of decay^age times the
// history, as RecentAttention writes it. AttentionPredictor, Yang et al. 2025, arXiv:2502.04077.
struct PredictBlocks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] CPU memory
  const std::int32_t* begin = nullptr;  // [num_rows] CPU memory
  const std::int32_t* next = nullptr;   // [num_rows] CPU memory: slot after the latest query's
  std::int32_t history_rows = 64;
  const float* const* history = nullptr;  // [num_rows] -> [blocks, history_rows]
  bool has_network = false;
  // CPU memory
  const float *w1 = nullptr, *b1 = nullptr;  // [16, 3, 3], [16]
  const float *w2 = nullptr, *b2 = nullptr;  // [32, 16, 3, 3], [32]
  const float *w3 = nullptr, *b3 = nullptr;  // [32], [1]
  float decay = 0.9F;
  float* scores = nullptr;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows],
                       products = has_network ? history_rows * (9 * kMiddle + 9 * kMiddle * kLast) + kLast : history_rows;
    return {.op = "predict_blocks",
            .rows = num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = 4 * n * (history_rows + 1),
            .flops = 2 * n * products};
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  // [kMiddle, history_rows, blocks] of the first convolution.
  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    return has_network ? kMiddle * history_rows * (first[row + 1] - first[row]) : 0;
  }
  void shapes(auto&& visit) {
    visit(first, num_rows + 1), visit(begin, num_rows), visit(next, num_rows), visit(history, num_rows);
    if (!has_network) return;
    visit(w1, kMiddle * 9), visit(b1, kMiddle), visit(w2, kLast * kMiddle * 9), visit(b2, kLast), visit(w3, kLast), visit(b3, 1);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t blocks = first[row + 1] - first[row];
    float* const out = scores + first[row];
    if (has_network) {
      team.each(kMiddle * history_rows * blocks, [&](std::int64_t i) { team.room()[i] = first_layer(row, i, blocks); });
      team.each(blocks, [&](std::int64_t b) { out[b] = second_layer(team.room(), b, blocks); });
    } else {
      team.each(blocks, [&](std::int64_t b) {
        float sum = 0.0F;
        for (std::int64_t t = 0; t < history_rows; ++t) sum = decay * sum + image(row, t, b, blocks);
        out[b] = sum;
      });
    }
  }

 private:
  static constexpr std::int64_t kMiddle = 16, kLast = 32;

  // With zeros around, the oldest query first.
  [[nodiscard]] KVLAB_BODY float image(std::int64_t row, std::int64_t t, std::int64_t b, std::int64_t blocks) const {
    if (t < 0 || t >= history_rows || b < 0 || b >= blocks) return 0.0F;
    return history[row][(begin[row] + b) * history_rows + (next[row] + t) % history_rows];
  }
  [[nodiscard]] KVLAB_BODY float first_layer(std::int64_t row, std::int64_t i, std::int64_t blocks) const {
    const std::int64_t c = i / (history_rows * blocks), t = i / blocks % history_rows, b = i % blocks;
    float sum = b1[c];
    for (std::int64_t k = 0; k < 9; ++k) sum += w1[c * 9 + k] * image(row, t + k / 3 - 1, b + k % 3 - 1, blocks);
    return sum > 0.0F ? sum : 0.0F;
  }
  [[nodiscard]] KVLAB_BODY float second_layer(const float* middle, std::int64_t b, std::int64_t blocks) const {
    float score = b3[0];
    for (std::int64_t c = 0; c < kLast; ++c) {
      float sum = 0.0F;
      for (std::int64_t t = 0; t < history_rows; ++t) {
        const float x = convolution(middle, c, t, b, blocks);
        sum += x > 0.0F ? x : 0.0F;
      }
      score += w3[c] * sum / static_cast<float>(history_rows);
    }
    return score;
  }
  [[nodiscard]] KVLAB_BODY float convolution(const float* middle, std::int64_t c, std::int64_t t, std::int64_t b,
                                             std::int64_t blocks) const {
    float sum = b2[c];
    for (std::int64_t i = 0; i < kMiddle; ++i)
      for (std::int64_t k = 0; k < 9; ++k) {
        const std::int64_t y = t + k / 3 - 1, x = b + k % 3 - 1;
        const bool is_inside = y >= 0 && y < history_rows && x >= 0 && x < blocks;
        sum += w2[(c * kMiddle + i) * 9 + k] * (is_inside ? middle[(i * history_rows + y) * blocks + x] : 0.0F);
      }
    return sum;
  }
};
KVLAB_ROW_OP(PredictBlocks)

}  // namespace kvlab
