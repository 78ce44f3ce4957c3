#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// Lists (oldest first) and marks each row's tokens that are due to be encoded: of the u tokens without the mark `bit` in word `channel` the
// oldest max(0, u - residual_tokens), in whole blocks, as far as the list has room; other entries become -1. Tokens that sequences of one
// prefix share (equal pages from the first on) are listed for the first of these. With `of_listed` only listed tokens can be due.
struct TakeDue {
  KvRows kv;
  std::int32_t channel = 0;
  std::uint32_t bit = 1;
  std::int32_t residual_tokens = 0, block_tokens = 1;
  const std::int64_t* first = nullptr;  // [num_rows + 1] the rows' lists
  std::int32_t* index = nullptr;        // [first[num_rows]] out
  bool of_listed = false;
  const std::int64_t* listed_first = nullptr;  // [num_rows + 1]
  const std::int32_t* listed = nullptr;        // [listed_first[num_rows]] tokens, ascending

  [[nodiscard]] OpCall cost() const {
    const std::int64_t due = first[kv.num_rows];
    if (of_listed) {
      const std::int64_t n = listed_first[kv.num_rows];
      return {.op = "mark_dropped", .rows = kv.num_rows, .tokens = n, .outputs = due, .bytes = 8 * (n + due), .flops = n};
    }
    return {.op = "take_due", .rows = kv.num_rows, .tokens = kv.total(), .outputs = due, .bytes = 4 * kv.total() + 8 * due};
  }
  [[nodiscard]] std::int64_t rows() const { return first[kv.num_rows] == first[0] ? 0 : kv.num_rows; }
  void shapes(auto&& visit) { visit(kv), visit(first, kv.num_rows + 1), visit(listed_first, kv.num_rows + 1); }

  // The first of the rows with the same pages takes for all, in order.
  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t heads = kv.kv_heads, head = row % heads;
    if (team.max(row / heads, 0, [&](std::int64_t s) { return shares_pages(row, s * heads + head) ? 1 : 0; }) != 0) return;
    take(team, row);
    for (std::int64_t later = row + heads; later < kv.num_rows; later += heads)
      if (shares_pages(row, later)) take(team, later);
  }

 private:
  [[nodiscard]] KVLAB_BODY bool shares_pages(std::int64_t a, std::int64_t b) const {
    return kv.len[a] > 0 && kv.len[b] > 0 && kv.page[kv.page_begin[a]] == kv.page[kv.page_begin[b]];
  }

  template <class Team>
  KVLAB_BODY void take(const Team& team, std::int64_t row) const {
    const std::int64_t room = first[row + 1] - first[row];
    if (room == 0) return;
    std::int32_t* const list = index + first[row];
    const std::int64_t n = of_listed ? listed_first[row + 1] - listed_first[row] : kv.len[row];
    const auto token = [&](std::int64_t i) { return of_listed ? listed[listed_first[row] + i] : static_cast<std::int32_t>(i); };
    const auto word = [&](std::int64_t i) -> std::uint32_t& { return kv.word(channel, static_cast<std::int32_t>(row), token(i)); };
    const auto lacks = [&](std::int64_t i) { return (word(i) & bit) == 0; };
    const auto unmarked = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return lacks(i) ? 1 : 0; });
    std::int64_t due = unmarked > residual_tokens ? unmarked - residual_tokens : 0;
    due = due < room ? due : room;
    due -= due % block_tokens;
    if (due > 0) {
      team.pack(n, lacks, [&](std::int64_t place, std::int64_t i) {
        if (place < due) word(i) |= bit, list[place] = token(i);
      });
    }
    team.each(room - due, [&](std::int64_t i) { list[due + i] = -1; });
  }
};
KVLAB_ROW_OP(TakeDue)

}  // namespace kvlab
