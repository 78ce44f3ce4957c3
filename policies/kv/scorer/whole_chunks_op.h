#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Counts that keep whole chunks. Tokens [begin, begin + len) of a row form chunks of `chunk_tokens` with equal scores; the last one may be
// shorter. Chunks are taken by score (ties: the earlier one) until the next one does not fit into keep[r] with the row's other tokens,
// which all stay, or num_chunks[r] of them. keep[r] becomes the number of tokens kept; without chunks it stays.
struct WholeChunks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *len = nullptr;  // [num_rows]
  std::int32_t chunk_tokens = 1;
  const float* scores = nullptr;             // [first[num_rows]]
  const std::int32_t* num_chunks = nullptr;  // [num_rows]; null: all that fit
  std::int32_t* keep = nullptr;              // [num_rows] in CPU memory; in, out
  // On the CPU only: ties fall as in torch.topk, and tokens of the chunks that go get -infinity here. Needs num_chunks.
  float* lowered = nullptr;  // [first[num_rows]], may be `scores`
  bool peer_ties = false;

  // One score per chunk is read, one count per row written.
  [[nodiscard]] OpCall cost() const {
    std::int64_t all = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) all += chunks(r);
    return {.op = "whole_chunks", .rows = num_rows, .tokens = all, .outputs = num_rows, .bytes = 4 * all + 4 * num_rows, .flops = 2 * all};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    if (peer_ties) refuse_on_gpu("whole_chunks with peer_ties");
    visit(first, num_rows + 1), visit(begin, num_rows), visit(len, num_rows), visit(num_chunks, num_rows);
  }
  void results(auto&& visit) { visit(keep, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return chunks(row); }  // their order, or a mark of those that stay

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t n = chunks(row), others = static_cast<std::int32_t>(first[row + 1] - first[row]) - len[row];
    if (n == 0) return;
    auto* const list = reinterpret_cast<std::int32_t*>(team.room());
    if (peer_ties) return take_as_peer(team, row, others, list);
    const auto score = [&](std::int32_t chunk) { return score_of(row, chunk); };
    team.sort(n, list, [&](std::int32_t x, std::int32_t y) { return score(x) > score(y); });
    team.once([&] {
      std::int32_t kept = others;
      for (std::int32_t i = 0; i < n && (num_chunks == nullptr || i < num_chunks[row]); ++i) {
        if (num_chunks == nullptr && kept + tokens(row, list[i]) > keep[row]) break;
        kept += tokens(row, list[i]);
      }
      keep[row] = num_chunks == nullptr && keep[row] < kept ? keep[row] : kept;
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int32_t chunks(std::int64_t row) const {
    return len[row] / chunk_tokens + (len[row] % chunk_tokens > 0 ? 1 : 0);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t tokens(std::int64_t row, std::int32_t chunk) const {
    const std::int32_t rest = len[row] - chunk * chunk_tokens;
    return rest < chunk_tokens ? rest : chunk_tokens;
  }
  // NaN is -infinity.
  [[nodiscard]] KVLAB_BODY float score_of(std::int64_t row, std::int32_t chunk) const {
    const float x = scores[first[row] + begin[row] + std::int64_t{chunk} * chunk_tokens];
    return std::isnan(x) ? -INFINITY : x;
  }
  template <class Team>
  KVLAB_BODY void take_as_peer(const Team& team, std::int64_t row, std::int32_t others, std::int32_t* stays) const {
    const std::int32_t n = chunks(row), count = num_chunks[row] < n ? num_chunks[row] : n;
    team.each(n, [&](std::int64_t chunk) { stays[chunk] = 0; });
    peer_best(
        team, n, count, 0, [&](std::int32_t chunk) { return score_of(row, chunk); }, [&](std::int32_t chunk) { stays[chunk] = 1; });
    team.each(len[row], [&](std::int64_t i) {
      if (stays[i / chunk_tokens] == 0) lowered[first[row] + begin[row] + i] = -INFINITY;
    });
    team.once([&] {
      keep[row] = others;
      for (std::int32_t chunk = 0; chunk < n; ++chunk) keep[row] += stays[chunk] != 0 ? tokens(row, chunk) : 0;
    });
  }
};
KVLAB_ROW_OP(WholeChunks)

}  // namespace kvlab
