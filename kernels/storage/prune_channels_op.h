#pragma once

#include "base/ceil_div.h"
#include "kernels/listed_tokens.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Of the listed vectors the `keep` channels of largest score stay, the same ones for a whole row, ties to the lower channel; the others
// become 0 (ThinK, Xu et al. 2024, arXiv:2407.21018, eq. 7). kernels/storage/stored/stored_channels.h has its stored form.
struct PruneChannels {
  ListedTokens tokens;
  const float* channel_score = nullptr;  // [*, head_dim]; line line[r] is row r's
  const std::int32_t* line = nullptr;    // [num_rows]
  std::int32_t keep = 0;

  // Vectors are read, kept channels written; scores are read once per row.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = tokens.total(), num_rows = tokens.kv.num_rows, d = tokens.kv.head_dim;
    return {.op = "prune_channels",
            .rows = num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = tokens.dense_bytes() + tokens.list_bytes() + n * keep * tokens.kv.kv_bytes + 4 * num_rows * d,
            .flops = 2 * num_rows * d};
  }
  // A team takes kPart entries of a row.
  static constexpr std::int64_t kPart = 32;
  [[nodiscard]] std::int64_t rows() const { return tokens.kv.num_rows * ceil_div(tokens.most_entries(), kPart); }
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return tokens.kv.head_dim; }
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, tokens.kv.num_rows + 1), visit(line, tokens.kv.num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const KvRows& kv = tokens.kv;
    const std::int64_t row = item % kv.num_rows, begin = item / kv.num_rows * kPart, rest = tokens.entries(row) - begin;
    if (rest <= 0) return;
    const std::int64_t d = kv.head_dim, pruned = d - keep;
    const float* const score = channel_score + line[row] * d;
    auto* const order = reinterpret_cast<std::int32_t*>(team.room());
    team.sort(kv.head_dim, order, [&](std::int32_t x, std::int32_t y) { return score[x] > score[y]; });
    team.each((rest < kPart ? rest : kPart) * pruned, [&](std::int64_t i) {
      const std::int32_t token = tokens.index[tokens.first[row] + begin + i / pruned];
      if (token < 0) return;
      const std::int64_t at = kv.slot(static_cast<std::int32_t>(row), token) * d + order[keep + i % pruned];
      set_element(tokens.values ? kv.v : kv.k, at, kv.type, 0.0F);
    });
  }
};
KVLAB_ROW_OP(PruneChannels)

}  // namespace kvlab
