#pragma once

#include <bit>
#include <cmath>

#include "kernels/rows/merge_sort.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/select/unit_lists.h"

namespace kvlab {

// Tokens [0, head[r]), the listed units', then [tail[r], len[r]). Unit u is tokens base[r] + u * unit_tokens on, between head and tail.
struct ExpandUnits {
  std::int32_t num_rows = 0;
  UnitLists lists;
  std::int32_t unit_tokens = 1;
  const std::int32_t* base = nullptr;         // [num_rows], null: 0
  const std::int32_t* head = nullptr;         // [num_rows], null: 0
  const std::int32_t* tail = nullptr;         // [num_rows]
  const std::int32_t* len = nullptr;          // [num_rows]
  const std::int64_t* index_first = nullptr;  // [num_rows + 1] exact offsets
  std::int32_t* index = nullptr;              // [index_first[num_rows]] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t units = lists.total(num_rows), tokens = index_first[num_rows];
    return {.op = "expand_units", .rows = num_rows, .tokens = units, .outputs = tokens, .bytes = 4 * (units + tokens)};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    visit_lists(lists, num_rows, visit), visit(index_first, num_rows + 1);
    visit(base, num_rows), visit(head, num_rows), visit(tail, num_rows), visit(len, num_rows);
  }
  [[nodiscard]] std::int64_t tokens(std::int32_t r) const {
    return (head == nullptr ? 0 : head[r]) + lists.size(r) * unit_tokens + len[r] - tail[r];
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return index_first[row + 1] - index_first[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const auto at = static_cast<std::int32_t>(i) - (head == nullptr ? 0 : head[row]);
    const auto chosen = static_cast<std::int32_t>(lists.size(row) * unit_tokens);
    std::int32_t token = static_cast<std::int32_t>(i);
    if (at >= chosen)
      token = tail[row] + at - chosen;
    else if (at >= 0)
      token = (base == nullptr ? 0 : base[row]) + lists.row(row)[at / unit_tokens] * unit_tokens + at % unit_tokens;
    index[index_first[row] + i] = token;
  }
};
KVLAB_EACH_OP(ExpandUnits)

// Copies lists, units of them, or the units that they lack.
//   kKeep    to[r][i] = lists.row(r)[i]; rows with an empty list are unchanged
//   kAll     out[first[r] + i] = lists.row(r)[i]
//   kPick    out[first[r] + i] = lists.row(r)[pick[first[r] + i]]
//   kOthers  out[first[r] + i] = the i-th unit that is not in lists.row(r), such as the dropped tokens of a row; all ascend
struct CopyUnits {
  enum class Kind : std::uint8_t { kKeep, kAll, kPick, kOthers };
  std::int32_t num_rows = 0;
  UnitLists lists;
  Kind kind = Kind::kKeep;
  std::int32_t* const* to = nullptr;    // [num_rows]
  const std::int64_t* first = nullptr;  // [num_rows + 1] exact offsets
  const std::int32_t* pick = nullptr;   // [first[num_rows]]
  std::int32_t* out = nullptr;          // may be `pick`

  [[nodiscard]] OpCall cost() const {
    const bool keeps = kind == Kind::kKeep;
    const std::int64_t n = keeps ? lists.total(num_rows) : first[num_rows];
    if (kind == Kind::kOthers) {
      const std::int64_t all = lists.total(num_rows) + n;
      return {.op = "list_dropped", .rows = num_rows, .tokens = all, .outputs = n, .bytes = 4 * all, .flops = all};
    }
    return {.op = keeps ? "keep_units" : "compose_units",
            .rows = num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = (kind == Kind::kPick ? 12 : 8) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit_lists(lists, num_rows, visit), visit(to, num_rows), visit(first, num_rows + 1); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const {
    return kind == Kind::kKeep ? lists.size(row) : first[row + 1] - first[row];
  }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const std::int32_t* const list = lists.row(row);
    std::int32_t& copy = kind == Kind::kKeep ? to[row][i] : out[first[row] + i];
    if (kind == Kind::kOthers)  // list[k] - k others come before list[k]
      copy = static_cast<std::int32_t>(i) +
             count_first(static_cast<std::int32_t>(lists.size(row)), [&](std::int32_t k) { return list[k] - k <= i; });
    else
      copy = list[kind == Kind::kPick ? pick[first[row] + i] : i];
  }
};
KVLAB_EACH_OP(CopyUnits)

// Union of `lists_per_row` consecutive ascending lists, one per query head.
struct UnionUnits {
  std::int32_t num_rows = 0, lists_per_row = 1;
  UnitLists lists;                      // of num_rows * lists_per_row lists
  const std::int64_t* first = nullptr;  // [num_rows + 1] offsets of the unions
  std::int32_t* unit = nullptr;         // out
  std::int32_t* count = nullptr;        // [num_rows] out, in CPU memory

  // Assumes that unions fill their space.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t in = lists.total(std::int64_t{num_rows} * lists_per_row), out = first[num_rows];
    return {.op = "union_units", .rows = num_rows, .tokens = in, .outputs = out, .bytes = 4 * (in + out), .flops = in};
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit_lists(lists, std::int64_t{num_rows} * lists_per_row, visit), visit(first, num_rows + 1); }
  void results(auto&& visit) { visit(count, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    std::int64_t n = 0;
    for (std::int64_t l = row * lists_per_row; l < (row + 1) * lists_per_row; ++l) n += lists.size(l);
    return n;
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    auto* const all = reinterpret_cast<std::int32_t*>(team.room());
    std::int64_t n = 0;
    for (std::int64_t l = row * lists_per_row; l < (row + 1) * lists_per_row; n += lists.size(l++))
      team.each(lists.size(l), [&](std::int64_t i) { all[i + in_others(row, l, lists.row(l)[i])] = lists.row(l)[i]; });
    std::int32_t* const to = unit + first[row];
    const std::int64_t distinct = team.pack(
        n, [&](std::int64_t i) { return i == 0 || all[i] != all[i - 1]; }, [&](std::int64_t k, std::int64_t i) { to[k] = all[i]; });
    team.once([&] { count[row] = static_cast<std::int32_t>(distinct); });
  }

 private:
  // Units of the row's other lists that come before this one of `list`.
  [[nodiscard]] KVLAB_BODY std::int64_t in_others(std::int64_t row, std::int64_t list, std::int32_t own) const {
    std::int64_t n = 0;
    for (std::int64_t l = row * lists_per_row; l < (row + 1) * lists_per_row; ++l)
      if (l != list) n += count_below(lists.row(l), static_cast<std::int32_t>(lists.size(l)), own + (l < list ? 1 : 0));
    return n;
  }
};
KVLAB_ROW_OP(UnionUnits)

// list [n] in order to `out`; the team has n floats of room.
template <class Team, class Before>
KVLAB_BODY void sort_units(const Team& team, const std::int32_t* list, std::int64_t n, std::int32_t* out, const Before& before) {
  merge_sort(team, static_cast<std::int32_t>(n), out, reinterpret_cast<std::int32_t*>(team.room()),
             [&](std::int32_t x, std::int32_t y) { return before(list[x], list[y]); });
  team.each(n, [&](std::int64_t i) { out[i] = list[out[i]]; });
}

// By descending score (ties: lower unit first); NaN counts as -infinity.
struct RankUnits {
  std::int32_t num_rows = 0;
  UnitLists lists;
  const std::int64_t* score_first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;              // of all units of the row
  std::int32_t* const* to = nullptr;          // [num_rows]; rows with an empty list are unchanged

  // Also reads scores; a sort counts n log2(n) comparisons.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "rank_units", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = lists.size(r);
      c.tokens += n;
      c.outputs += n;
      c.bytes += 12 * n;
      c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit_lists(lists, num_rows, visit), visit(score_first, num_rows + 1), visit(to, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return lists.size(row); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t* const list = lists.row(row);
    const auto score = [&](std::int32_t i) {
      const float x = scores[score_first[row] + i];
      return std::isnan(x) ? -INFINITY : x;
    };
    sort_units(team, list, lists.size(row), to[row], [&](std::int32_t x, std::int32_t y) { return score(x) > score(y); });
  }
};
KVLAB_ROW_OP(RankUnits)

// The first first[r + 1] - first[r] of each ranked list, ascending.
struct TakeRanked {
  std::int32_t num_rows = 0;
  const std::int32_t* const* ranked = nullptr;  // [num_rows]
  const std::int64_t* first = nullptr;          // [num_rows + 1] exact offsets
  std::int32_t* unit = nullptr;                 // [first[num_rows]] out

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "take_ranked", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r];
      c.tokens += n;
      c.outputs += n;
      c.bytes += 8 * n;
      c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(ranked, num_rows), visit(first, num_rows + 1); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return first[row + 1] - first[row]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    sort_units(team, ranked[row], first[row + 1] - first[row], unit + first[row], [](std::int32_t x, std::int32_t y) { return x < y; });
  }
};
KVLAB_ROW_OP(TakeRanked)

// Counts asked-for units (ascending) that the last step read, then stores `now` (asked for or always read) in `last`. With page_tokens: the
// pages of so many neighbouring tokens that hold the asked-for ones. Diagnostic, free.
struct TrackReuse {
  std::int32_t num_rows = 0;
  UnitLists asked = {}, now = {};
  std::int32_t* const* last = nullptr;       // [num_rows] with space for both steps' lists
  const std::int32_t* last_count = nullptr;  // [num_rows]
  const std::int32_t* held_from = nullptr;   // [num_rows] in CPU memory: units from here on count as read; null: none
  std::int32_t* hits = nullptr;              // [num_rows] out, in CPU memory
  std::int32_t page_tokens = 0;              // 0: units that were read

  [[nodiscard]] OpCall cost() const { return {.op = page_tokens > 0 ? "flash_pages" : "track_reuse", .rows = num_rows}; }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    visit_lists(asked, num_rows, visit), visit_lists(now, num_rows, visit);
    visit(last, num_rows), visit(last_count, num_rows), visit(held_from, num_rows);
  }
  void results(auto&& visit) { visit(hits, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    std::int32_t* const was = page_tokens > 0 ? nullptr : last[row];
    const auto found = team.template sum<std::int32_t>(asked.size(row), [&](std::int64_t i) {
      const std::int32_t unit = asked.row(row)[i];
      if (page_tokens > 0) return i == 0 || unit / page_tokens != asked.row(row)[i - 1] / page_tokens ? 1 : 0;
      return (held_from != nullptr && unit >= held_from[row]) || is_among(was, last_count[row], unit) ? 1 : 0;
    });
    team.once([&] { hits[row] = found; });
    if (page_tokens > 0) return;
    team.each(now.size(row), [&](std::int64_t i) { was[i] = now.row(row)[i]; });
  }
};
KVLAB_ROW_OP(TrackReuse)

}  // namespace kvlab
