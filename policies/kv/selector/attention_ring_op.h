#pragma once

#include <bit>

#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// The probabilities that each token received from the last queries that attended to it, in words of the cache: `ring` values from channel
// first_word on, in the next channel the number of values so far. Pushes, for each of the last `ring` queries of a sequence, the softmax
// over the listed tokens that it sees (without lists all of the row), averaged over the row's query heads. Other tokens keep their values.
struct PushAttention {
  KvRows kv;
  const Queries* queries = nullptr;  // [kv.num_sequences()]
  bool lists_tokens = false;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;
  std::int32_t first_word = 0, ring = 0;

  // Keys of the listed tokens are read once, words written; 2 FLOPs per channel and 3 for the softmax per query head, query and token.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "push_attention", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t count = queries[kv.sequence(r)].count;
      const std::int64_t n = tokens(r), w = ring < count ? ring : count;
      if (n == 0 || w == 0) continue;
      c.tokens += n;
      c.outputs += n;
      c.bytes += n * kv.head_dim * kv.kv_bytes + n * 4 * (w + 1) + w * kv.group * kv.head_dim * 2;
      c.flops += n * w * kv.group * (2LL * kv.head_dim + 3);
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // A weight of a head and their mean, of each token.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 2 * tokens(row); }
  void shapes(auto&& visit) { visit(queries, kv.num_sequences()), visit(index_first, kv.num_rows + 1), visit(kv); }

  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const {
    return lists_tokens ? index_first[row + 1] - index_first[row] : kv.len[row];
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t count = queries[row / kv.kv_heads].count;
    for (std::int32_t t = count < ring ? 0 : count - ring; t < count; ++t) push(team, row, t);
  }

 private:
  template <class Team>
  KVLAB_BODY void push(const Team& team, std::int64_t row, std::int32_t t) const {
    const Queries& all = queries[row / kv.kv_heads];
    const std::int64_t d = kv.head_dim, n = visible(row, all.first_position + t);
    if (n == 0) return;
    const float* const heads = all.data + (std::int64_t{t} * kv.kv_heads + row % kv.kv_heads) * kv.group * d;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    float *const p = team.room(), *const z = p + n;
    team.each(n, [&](std::int64_t i) { p[i] = 0.0F; });
    for (std::int64_t h = 0; h < kv.group; ++h) {
      team.dots(
          n, d, heads + h * d, [&](std::int64_t i) { return key_of(team, kv, row, token(row, i)); },
          [&](std::int64_t i, float x) { z[i] = scale * x; });
      const float sum = exp_sum(team, n, largest(team, n, z), z);
      team.each(n, [&](std::int64_t i) { p[i] += z[i] / sum / static_cast<float>(kv.group); });
    }
    team.each(n, [&](std::int64_t i) {
      std::uint32_t* const words = kv.words + first_word * kv.pool_tokens + kv.slot(static_cast<std::int32_t>(row), token(row, i));
      std::uint32_t& pushed = words[ring * kv.pool_tokens];
      words[pushed++ % static_cast<std::uint32_t>(ring) * kv.pool_tokens] = std::bit_cast<std::uint32_t>(p[i]);
    });
  }

  [[nodiscard]] KVLAB_BODY std::int32_t token(std::int64_t row, std::int64_t i) const {
    return lists_tokens ? index[index_first[row] + i] : static_cast<std::int32_t>(i);
  }
  // The leading tokens up to a position; positions ascend.
  [[nodiscard]] KVLAB_BODY std::int64_t visible(std::int64_t row, std::int32_t position) const {
    return count_first(static_cast<std::int32_t>(tokens(row)),
                       [&](std::int32_t i) { return kv.position[kv.slot(static_cast<std::int32_t>(row), token(row, i))] <= position; });
  }
};
KVLAB_ROW_OP(PushAttention)

}  // namespace kvlab
