#pragma once

#include <bit>
#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Attention of a sequence's last min(count, steps) queries: a softmax per query head over the visible (listed) tokens.
//   kTokens  mean over the row's query heads in the cache's words: `steps` values from channel first_word on, then the number of values so
//            far. Unlisted tokens keep theirs. ALISA, Zhao et al. 2024
//   kBlocks  a history [blocks, steps]: slot (start + t) % steps of a block has the largest probability over its tokens and the row's query
//            heads at query t, or 0. AttentionPredictor, Yang et al. 2025, arXiv:2502.04077
//   kScores  scores of all but the last min(count, steps) tokens, which get 0: mean over queries, of the softmax of a token's largest logit
//            over the row's query heads. R-KV, Cai et al. 2025, arXiv:2505.24133
struct RecentAttention {
  enum class Kind : std::uint8_t { kTokens, kBlocks, kScores };
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]; kScores: query t is element t % steps
  Kind kind = Kind::kTokens;
  std::int32_t steps = 0;
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;        // ascending
  std::int32_t first_word = 0;                // of kTokens
  // For kBlocks.
  std::int32_t block_tokens = 16;
  const std::int32_t* start = nullptr;  // [kv.num_rows] CPU memory
  const std::int32_t* fresh = nullptr;  // [kv.num_rows] CPU memory, 1: clears the history
  float* const* history = nullptr;      // [kv.num_rows]
  float* scores = nullptr;              // [kv.total()] of kScores

  [[nodiscard]] OpCall cost() const {
    if (of_scores()) return cost_of_scores();
    OpCall c{.op = of_blocks() ? "push_block_attention" : "push_attention", .rows = of_blocks() ? 0 : kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = tokens(r), w = votes(r), outputs = of_blocks() ? w * blocks(r) : n;
      if (w == 0 || (n == 0 && !of_blocks())) continue;
      c.rows += of_blocks() ? 1 : 0;
      c.tokens += n;
      c.outputs += outputs;
      c.bytes += n * kv.head_dim * kv.kv_bytes + 4 * outputs * (of_blocks() ? 1 : w + 1);
      c.bytes += of_blocks() ? 0 : 2 * w * kv.group * kv.head_dim;
      c.flops += (of_blocks() ? causal_pairs(w, n) : n * w) * kv.group * (2LL * kv.head_dim + 3);
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return of_scores() ? 3 * older(row) : (of_blocks() ? 1 : 2) * tokens(row); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(queries, kv.num_sequences()), visit(index_first, n + 1), visit(start, n), visit(fresh, n), visit(history, n), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t count = queries[row / kv.kv_heads].count;
    if (of_blocks() && count > 0 && fresh[row] == 1) team.each(blocks(row) * steps, [&](std::int64_t i) { history[row][i] = 0.0F; });
    if (of_scores()) team.each(older(row), [&](std::int64_t i) { team.doubles()[i] = 0; });
    for (std::int32_t t = count - votes(row); t < count; ++t) add(team, row, t);
    if (of_scores())
      team.each(kv.len[row],
                [&](std::int64_t i) { scores[kv.first[row] + i] = i < older(row) ? static_cast<float>(team.doubles()[i]) : 0.0F; });
  }

 private:
  [[nodiscard]] KVLAB_BOTH bool of_blocks() const { return kind == Kind::kBlocks; }
  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const {
    return lists_tokens ? index_first[row + 1] - index_first[row] : kv.len[row];
  }
  [[nodiscard]] KVLAB_BOTH bool of_scores() const { return kind == Kind::kScores; }
  [[nodiscard]] KVLAB_BOTH std::int32_t votes(std::int64_t row) const {
    const std::int32_t count = queries[row / kv.kv_heads].count;
    return steps < count ? steps : count;
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t older(std::int64_t row) const { return kv.len[row] > votes(row) ? kv.len[row] - votes(row) : 0; }
  [[nodiscard]] OpCall cost_of_scores() const {
    const std::int64_t d = kv.head_dim;
    OpCall c{.op = "ring_attention", .rows = kv.num_rows, .outputs = kv.total(), .bytes = 4 * kv.total()};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = older(r), vectors = std::int64_t{votes(r)} * kv.group;
      if (n == 0) continue;
      c.tokens += n;
      c.bytes += n * d * kv.kv_bytes + 4 * vectors * d;
      c.flops += 2 * vectors * n * d;
    }
    return c;
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t blocks(std::int64_t row) const { return (kv.len[row] + block_tokens - 1) / block_tokens; }

  template <class Team>
  KVLAB_BODY void add(const Team& team, std::int64_t row, std::int32_t t) const {
    const Queries& all = queries[row / kv.kv_heads];
    const std::int64_t d = kv.head_dim, n = of_scores() ? older(row) : visible(row, all.first_position + t);
    const std::int64_t outputs = of_scores() ? 0 : of_blocks() ? blocks(row) : n, stride = of_blocks() ? steps : 1;
    float* const z = team.room() + (of_scores() ? 2 * n : 0);
    float* const out = of_blocks() ? history[row] + (start[row] + t) % steps : z + n;
    team.each(outputs, [&](std::int64_t i) { out[i * stride] = 0.0F; });
    if (n == 0) return;
    const std::int64_t at = of_scores() ? t % steps : t;
    const float* const heads = all.data + (at * kv.kv_heads + row % kv.kv_heads) * kv.group * d;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    for (std::int64_t h = 0; h < kv.group; ++h) {
      team.dots(
          n, d, heads + h * d, [&](std::int64_t i) { return key_of(team, kv, row, token(row, i)); },
          [&](std::int64_t i, float x) { z[i] = !of_scores() || h == 0 || z[i] < scale * x ? scale * x : z[i]; });
      if (of_scores() && h + 1 < kv.group) continue;
      const float top = team.max(n, kind == Kind::kTokens ? z[0] : -INFINITY, [&](std::int64_t i) { return z[i]; });
      if (of_scores()) return add_scores(team, n, z, top, votes(row));
      if (of_blocks() && top == -INFINITY) return;
      const float sum = exp_sum(team, n, top, z);
      team.each(outputs, [&](std::int64_t i) {
        float& to = out[i * stride];
        const float share = (of_blocks() ? largest_of(row, i, n, z) : z[i]) / sum;
        to = !of_blocks() ? to + share / static_cast<float>(kv.group) : share > to ? share : to;
      });
    }
    if (!of_blocks()) team.each(n, [&](std::int64_t i) { keep(kv.slot(static_cast<std::int32_t>(row), token(row, i)), out[i]); });
  }

  template <class Team>
  KVLAB_BODY static void add_scores(const Team& team, std::int64_t n, const float* z, float top, std::int32_t count) {
    const auto weight = [&](std::int64_t i) { return std::exp(static_cast<double>(z[i] - top)); };
    const double sum = team.template sum<double>(n, weight);
    team.each(n, [&](std::int64_t i) { team.doubles()[i] += 1.0 / count * weight(i) / sum; });
  }
  KVLAB_BODY void keep(std::int64_t slot, float value) const {
    std::uint32_t* const words = kv.words + first_word * kv.pool_tokens + slot;
    std::uint32_t& kept = words[steps * kv.pool_tokens];
    words[kept++ % static_cast<std::uint32_t>(steps) * kv.pool_tokens] = std::bit_cast<std::uint32_t>(value);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t token(std::int64_t row, std::int64_t i) const {
    return lists_tokens ? index[index_first[row] + i] : static_cast<std::int32_t>(i);
  }
  // Positions ascend.
  [[nodiscard]] KVLAB_BODY std::int64_t visible(std::int64_t row, std::int32_t position) const {
    return count_first(static_cast<std::int32_t>(tokens(row)),
                       [&](std::int32_t i) { return kv.position[kv.slot(static_cast<std::int32_t>(row), token(row, i))] <= position; });
  }
  // Among the n leading tokens.
  [[nodiscard]] KVLAB_BODY float largest_of(std::int64_t row, std::int64_t block, std::int64_t n, const float* weight) const {
    const std::int64_t begin = block * block_tokens;
    std::int64_t i = count_first(static_cast<std::int32_t>(n), [&](std::int32_t at) { return token(row, at) < begin; });
    float most = 0.0F;
    for (; i < n && token(row, i) < begin + block_tokens; ++i) most = weight[i] > most ? weight[i] : most;
    return most;
  }
};
KVLAB_ROW_OP(RecentAttention)

}  // namespace kvlab
