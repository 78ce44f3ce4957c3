#pragma once

#include <cmath>

#include "base/ceil_div.h"
#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"

// Attention that blocks of tokens received, and a guess of the next query's. AttentionPredictor, Yang et al. 2025, arXiv:2502.04077. A
// row's history is [blocks, rows]: slot t % rows of block b has the largest probability over the block's tokens and the row's query heads
// at query t.
namespace kvlab {

// Appends the last min(count, history_rows) queries; query t goes to slot (start + t) % history_rows. The softmax is over the listed tokens
// (all without lists) up to its position; blocks without any receive 0.
struct PushBlockAttention {
  KvRows kv;
  const Queries* queries = nullptr;     // [kv.num_sequences()]; a count of 0 appends nothing
  const std::int32_t* start = nullptr;  // [kv.num_rows] CPU memory
  const std::int32_t* fresh = nullptr;  // [kv.num_rows] CPU memory, 1: the history is 0 before
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  std::int32_t block_tokens = 16, history_rows = 64;
  float* const* history = nullptr;  // [kv.num_rows]

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "push_block_attention"};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t count = queries[kv.sequence(r)].count, appended = count < history_rows ? count : history_rows, n = tokens(r);
      if (count == 0) continue;
      c.rows += 1;
      c.tokens += n;
      c.outputs += appended * blocks(r);
      c.bytes += n * kv.head_dim * kv.kv_bytes + 4 * appended * blocks(r);
      c.flops += causal_pairs(appended, n) * kv.group * (2 * kv.head_dim + 3);
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return tokens(row); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(queries, kv.num_sequences()), visit(start, n), visit(fresh, n), visit(index_first, n + 1), visit(history, n), visit(kv);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const {
    return lists_tokens ? index_first[row + 1] - index_first[row] : kv.len[row];
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t blocks(std::int64_t row) const { return (kv.len[row] + block_tokens - 1) / block_tokens; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t count = queries[row / kv.kv_heads].count;
    if (count == 0) return;
    if (fresh[row] == 1) team.each(blocks(row) * history_rows, [&](std::int64_t i) { history[row][i] = 0.0F; });
    for (std::int32_t t = count < history_rows ? 0 : count - history_rows; t < count; ++t) push(team, row, t);
  }

 private:
  template <class Team>
  KVLAB_BODY void push(const Team& team, std::int64_t row, std::int32_t t) const {
    const Queries& all = queries[row / kv.kv_heads];
    const std::int64_t d = kv.head_dim, n = tokens(row);
    float *const z = team.room(), *const out = history[row] + (start[row] + t) % history_rows;
    const float* const q = all.data + (std::int64_t{t} * kv.kv_heads + row % kv.kv_heads) * kv.group * d;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    team.each(blocks(row), [&](std::int64_t b) { out[b * history_rows] = 0.0F; });
    for (std::int64_t h = 0; h < kv.group; ++h) {
      team.each(n, [&](std::int64_t i) {
        const bool is_seen = sees(row, i, all.first_position + t);
        z[i] = is_seen ? scale * team.dot(q + h * d, key_of(team, kv, row, token(row, i)), d) : -INFINITY;
      });
      const float top = team.max(n, -INFINITY, [&](std::int64_t i) { return z[i]; });
      if (top == -INFINITY) return;
      team.each(n, [&](std::int64_t i) { z[i] = std::exp(z[i] - top); });
      const float sum = team.sum(n, [&](std::int64_t i) { return z[i]; });
      team.each(blocks(row), [&](std::int64_t b) {
        float& most = out[b * history_rows];
        const float weight = largest_of(row, b, n, z) / sum;
        most = weight > most ? weight : most;
      });
    }
  }

  [[nodiscard]] KVLAB_BODY std::int32_t token(std::int64_t row, std::int64_t i) const {
    return lists_tokens ? index[index_first[row] + i] : static_cast<std::int32_t>(i);
  }
  // False: a token after the query, or an empty entry.
  [[nodiscard]] KVLAB_BODY bool sees(std::int64_t row, std::int64_t i, std::int32_t position) const {
    const std::int32_t at = token(row, i);
    return at >= 0 && kv.position[kv.slot(static_cast<std::int32_t>(row), at)] <= position;
  }
  // Lists ascend.
  [[nodiscard]] KVLAB_BODY float largest_of(std::int64_t row, std::int64_t block, std::int64_t n, const float* weight) const {
    const std::int64_t begin = block * block_tokens;
    float most = 0.0F;
    for (std::int64_t i = first_from(row, begin, n); i < n && token(row, i) < begin + block_tokens; ++i)
      most = weight[i] > most ? weight[i] : most;
    return most;
  }
  [[nodiscard]] KVLAB_BODY std::int64_t first_from(std::int64_t row, std::int64_t begin, std::int64_t n) const {
    std::int64_t low = 0, high = n;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (token(row, middle) < begin)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};
KVLAB_ROW_OP(PushBlockAttention)

// Scores of blocks [begin[r], begin[r] + first[r + 1] - first[r]): two convolutions over queries and blocks, 3 x 3 with zeros around, 1 ->
// 16 -> 32, each rectified, the mean over queries, and a product with 32 weights; or (has_network false) the sum of decay^age times the
// history.
struct PredictBlocks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] CPU memory
  const std::int32_t* begin = nullptr;  // [num_rows] CPU memory
  const std::int32_t* next = nullptr;   // [num_rows] CPU memory: slot after the latest query's
  std::int32_t history_rows = 64;
  const float* const* history = nullptr;
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
