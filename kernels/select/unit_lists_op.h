#pragma once

#include <bit>
#include <cmath>

#include "kernels/kv_rows.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Copies lists, units or tokens of them, or the missing units.
//   kKeep    to[r][i] = lists.row(r)[i]; rows with an empty list are unchanged
//   kAll     out[first[r] + i] = lists.row(r)[i]
//   kPick    out[first[r] + i] = lists.row(r)[pick[first[r] + i]]
//   kOthers  out[first[r] + i] = the i-th unit that is not in lists.row(r), ascending
//   kExpand  to `out` tokens [0, head[r]), the listed units', then [tail[r], len[r]); unit u: tokens from base[r] + u * unit_tokens
struct CopyUnits {
  enum class Kind : std::uint8_t { kKeep, kAll, kPick, kOthers, kExpand };
  std::int32_t num_rows = 0;
  UnitLists lists;
  Kind kind = Kind::kKeep;
  std::int32_t* const* to = nullptr;    // [num_rows]
  const std::int64_t* first = nullptr;  // [num_rows + 1] exact offsets
  const std::int32_t* pick = nullptr;   // [first[num_rows]]
  std::int32_t* out = nullptr;          // may be `pick`
  std::int32_t unit_tokens = 1;
  const std::int32_t *base = nullptr, *head = nullptr;  // [num_rows], null: 0
  const std::int32_t *tail = nullptr, *len = nullptr;   // [num_rows]

  [[nodiscard]] OpCall cost() const {
    const bool lists_all = kind == Kind::kKeep || kind == Kind::kOthers || kind == Kind::kExpand;
    const std::int64_t listed = lists_all ? lists.total(num_rows) : 0, n = kind == Kind::kKeep ? listed : first[num_rows];
    OpCall c{.op = "compose_units", .rows = num_rows, .tokens = n, .outputs = n, .bytes = (kind == Kind::kPick ? 12 : 8) * n};
    if (kind == Kind::kKeep) c.op = "keep_units";
    if (kind == Kind::kOthers) c.op = "list_dropped", c.tokens = c.flops = listed + n, c.bytes = 4 * (listed + n);
    if (kind == Kind::kExpand) c.op = "expand_units", c.tokens = listed, c.bytes = 4 * (listed + n);
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    visit_lists(lists, num_rows, visit), visit(to, num_rows), visit(first, num_rows + 1);
    visit(base, num_rows), visit(head, num_rows), visit(tail, num_rows), visit(len, num_rows);
  }
  // kExpand.
  [[nodiscard]] std::int64_t tokens(std::int32_t r) const {
    return (head == nullptr ? 0 : head[r]) + lists.size(r) * unit_tokens + len[r] - tail[r];
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const {
    return kind == Kind::kKeep ? lists.size(row) : first[row + 1] - first[row];
  }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    std::int32_t& copy = kind == Kind::kKeep ? to[row][i] : out[first[row] + i];
    const auto at = static_cast<std::int32_t>(i);
    copy = kind == Kind::kExpand   ? token(row, at)
           : kind == Kind::kOthers ? other(row, at)
                                   : lists.row(row)[kind == Kind::kPick ? pick[first[row] + i] : i];
  }

 private:
  [[nodiscard]] KVLAB_BODY std::int32_t token(std::int64_t row, std::int32_t i) const {
    const std::int32_t at = i - (head == nullptr ? 0 : head[row]);
    const auto chosen = static_cast<std::int32_t>(lists.size(row) * unit_tokens);
    if (at < 0) return i;
    if (at >= chosen) return tail[row] + at - chosen;
    return (base == nullptr ? 0 : base[row]) + lists.row(row)[at / unit_tokens] * unit_tokens + at % unit_tokens;
  }
  [[nodiscard]] KVLAB_BODY std::int32_t other(std::int64_t row, std::int32_t i) const {
    const std::int32_t* const list = lists.row(row);
    return i + count_first(static_cast<std::int32_t>(lists.size(row)), [&](std::int32_t k) { return list[k] - k <= i; });
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
  // Units of the row's other lists before this one.
  [[nodiscard]] KVLAB_BODY std::int64_t in_others(std::int64_t row, std::int64_t list, std::int32_t own) const {
    std::int64_t n = 0;
    for (std::int64_t l = row * lists_per_row; l < (row + 1) * lists_per_row; ++l)
      if (l != list) n += count_below(lists.row(l), static_cast<std::int32_t>(lists.size(l)), own + (l < list ? 1 : 0));
    return n;
  }
};
KVLAB_ROW_OP(UnionUnits)

// Lists in another order:
//   kByScore  by falling score, equals in the list's order, NaN as -infinity; to to[r], rows with an empty list are unchanged
//   kByUnit   its first units, ascending; to `unit` from first[r] on
struct SortUnits {
  enum class Kind : std::uint8_t { kByScore, kByUnit };
  std::int32_t num_rows = 0;
  UnitLists lists;
  Kind kind = Kind::kByScore;
  const std::int64_t* score_first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;              // all units of the row
  std::int32_t* const* to = nullptr;          // [num_rows]
  const std::int64_t* first = nullptr;        // [num_rows + 1] of kByUnit: numbers of first units
  std::int32_t* unit = nullptr;               // [first[num_rows]] out

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = kind == Kind::kByScore ? "rank_units" : "take_ranked", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = size(r);
      c.tokens += n;
      c.outputs += n;
      c.bytes += (kind == Kind::kByScore ? 12 : 8) * n;
      c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    visit_lists(lists, num_rows, visit), visit(score_first, num_rows + 1), visit(to, num_rows), visit(first, num_rows + 1);
  }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return size(row); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = size(row);
    const std::int32_t* const list = lists.row(row);
    std::int32_t* const out = kind == Kind::kByScore ? to[row] : unit + first[row];
    const auto score = [&](std::int32_t i) {
      const float x = scores[score_first[row] + list[i]];
      return std::isnan(x) ? -INFINITY : x;
    };
    merge_sort(team, static_cast<std::int32_t>(n), out, reinterpret_cast<std::int32_t*>(team.room()),
               [&](std::int32_t i, std::int32_t j) { return kind == Kind::kByScore ? score(i) > score(j) : list[i] < list[j]; });
    team.each(n, [&](std::int64_t i) { out[i] = list[out[i]]; });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t size(std::int64_t row) const {
    return kind == Kind::kByScore ? lists.size(row) : first[row + 1] - first[row];
  }
};
KVLAB_ROW_OP(SortUnits)

// Entries of a list by score, in the list's order. Entry i has score lists.row(r)[i] of the row; -1 counts as the lowest, NaN as -infinity.
//   kSplit      the first[r + 1] - first[r] best entries (ties: the earlier) to `unit`, the others to `rest`
//   kSentences  the best tokens[r][i]; a token has the score of its sentence
//   kClusters   all i of which the score is above the sequence's threshold
struct SelectUnits {
  enum class Kind : std::uint8_t { kSplit, kSentences, kClusters };
  std::int32_t num_rows = 0, kv_heads = 1;
  Kind kind = Kind::kSplit;
  UnitLists lists;
  const std::int64_t* score_first = nullptr;    // [num_rows + 1]
  const float* scores = nullptr;                // [score_first[num_rows]]
  const std::int32_t* const* tokens = nullptr;  // [num_rows]
  const float* const* threshold = nullptr;      // [num_rows / kv_heads] -> [1]
  const std::int64_t* first = nullptr;          // [num_rows + 1]
  std::int32_t* unit = nullptr;                 // [first[num_rows]] out
  std::int32_t* rest = nullptr;   // [lists.first[num_rows] - first[num_rows]] out of kSplit, from lists.first[r] - first[r] on
  std::int32_t* count = nullptr;  // [num_rows] out of kClusters, in CPU memory

  // kClusters counts all tokens, kSentences n log2(n) comparisons.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = lists.total(num_rows), all = score_first[num_rows], taken = first[num_rows];
    if (kind == Kind::kSplit) return {.op = "split_listed", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 12 * n, .flops = 2 * n};
    const bool clusters = kind == Kind::kClusters;
    OpCall c{.op = clusters ? "cluster_tokens" : "take_sentences",
             .rows = num_rows,
             .tokens = n,
             .outputs = taken,
             .bytes = 4 * (all + n + taken),
             .flops = clusters ? all + n : 0};
    for (std::int32_t r = 0; r < num_rows && !clusters; ++r) {
      const std::int64_t scored = score_first[r + 1] - score_first[r];
      c.flops += scored * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(scored)));
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    visit(score_first, num_rows + 1), visit(lists.count, num_rows), visit(tokens, num_rows);
    visit(lists.first, num_rows + 1), visit(lists.rows, num_rows), visit(first, num_rows + 1), visit(threshold, num_rows / kv_heads);
  }
  void results(auto&& visit) { visit(count, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return lists.size(row); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const auto n = static_cast<std::int32_t>(lists.size(row)), most = static_cast<std::int32_t>(first[row + 1] - first[row]);
    const std::int32_t* const list = lists.row(row);
    const float* const of_row = scores + score_first[row];
    const auto score = [&](std::int64_t i) { return list[i] < 0 ? -INFINITY : of_row[list[i]]; };
    auto* const chosen = reinterpret_cast<std::int32_t*>(team.room());
    if (kind == Kind::kClusters)
      team.each(n, [&](std::int64_t i) { chosen[i] = score(i) > *threshold[row / kv_heads] ? 1 : 0; });
    else
      mark_best(team, n, most, score, chosen);
    const auto pack = [&](bool best, std::int32_t* to) {
      return team.pack(
          n, [&](std::int64_t i) { return (chosen[i] != 0) == best; }, [&](std::int64_t k, std::int64_t i) { to[k] = entry(row, i); });
    };
    const std::int64_t taken = pack(true, unit + first[row]);
    if (kind == Kind::kSplit) pack(false, rest + (lists.first[row] - first[row]));
    if (kind == Kind::kClusters) team.once([&] { count[row] = static_cast<std::int32_t>(taken); });
  }

 private:
  [[nodiscard]] KVLAB_BODY std::int32_t entry(std::int64_t row, std::int64_t i) const {
    return kind == Kind::kSplit ? lists.row(row)[i] : kind == Kind::kSentences ? tokens[row][i] : static_cast<std::int32_t>(i);
  }
};
KVLAB_ROW_OP(SelectUnits)

// Counts asked-for units (ascending) that the last step read, then stores `now` (asked for or always read) in `last`. With page_tokens:
// pages of neighbouring tokens that hold them. Diagnostic, free.
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
