#pragma once

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Counts entries of each row, with sums in double:
//   kAtLeast, kAbove  scores at least, or above, `limit`, without NaN
//   kMeanAbove        scores above `limit`, mean over the pool's rows, rounded down, at least 1, at most cap[r]: InfiniGen, Lee et al.
//   2024,
//                     section 4.3
//   kLeadingMass      of a descending row without negative scores the leading ones that hold the share `limit` of the sum; at least 1
//   kListedMass       of the listed tokens' words (float32, not negative) the fewest that hold this share: the important tokens of ZipVL,
//                     He et al. 2024, arXiv:2410.08584, eq. 4
//   kListedFrom       list entries that are at least `limit`
struct CountScores {
  enum class Kind : std::uint8_t { kAtLeast, kAbove, kMeanAbove, kLeadingMass, kListedMass, kListedFrom };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]]
  Kind kind = Kind::kAtLeast;
  double limit = 0;
  std::int32_t* count = nullptr;        // [num_rows] out, in CPU memory; not written where only shapes are known
  std::int32_t rows_per_pool = 1;       // of kMeanAbove
  const std::int32_t* cap = nullptr;    // [num_rows]
  const std::int32_t* index = nullptr;  // [first[num_rows]] of kListed...; entries of -1 are at the lists' ends
  KvRows kv = {};                       // of kListedMass
  std::int32_t word = 0;

  // Entries and words are read; a mass is a sum and a search.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows], written = 4LL * num_rows;
    OpCall c{.op = "count_scores", .rows = num_rows, .tokens = n, .outputs = num_rows, .bytes = 4 * n + written, .flops = n};
    if (kind == Kind::kMeanAbove) c.op = "fetch_counts";
    if (kind == Kind::kLeadingMass) c.flops = 2 * n;
    if (kind == Kind::kListedMass) c.op = "cover_mass", c.bytes = 8 * n + written, c.flops = 3 * n;
    if (kind == Kind::kListedFrom) c.op = "count_from", c.bytes = 2 * written, c.flops = 0;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows / rows_per_pool; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return kind == Kind::kListedMass ? first[row + 1] - first[row] : 0; }
  void shapes(auto&& visit) {
    visit(first, num_rows + 1), visit(cap, num_rows);
    if (kind == Kind::kListedMass) visit(kv);
  }
  void results(auto&& visit) { visit(count, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    const std::int64_t row0 = pool * rows_per_pool, begin = first[row0], n = first[row0 + rows_per_pool] - begin;
    std::int64_t found = 0;
    if (kind == Kind::kLeadingMass || kind == Kind::kListedMass)
      found = count_mass(team, row0, static_cast<std::int32_t>(n));
    else
      found = team.template sum<std::int64_t>(n, [&](std::int64_t i) { return counts(begin + i) ? 1 : 0; });
    const std::int64_t mean = found / rows_per_pool, least = mean < 1 ? 1 : mean;
    team.each(rows_per_pool, [&](std::int64_t r) {
      count[row0 + r] = static_cast<std::int32_t>(kind != Kind::kMeanAbove ? found : least < cap[row0 + r] ? least : cap[row0 + r]);
    });
  }

 private:
  [[nodiscard]] KVLAB_BODY bool counts(std::int64_t i) const {
    if (kind == Kind::kListedFrom) return index[i] >= limit;
    return kind == Kind::kAtLeast ? double{scores[i]} >= limit : double{scores[i]} > limit;
  }

  template <class Team>
  [[nodiscard]] KVLAB_BODY std::int32_t count_mass(const Team& team, std::int64_t row, std::int32_t n) const {
    float* const of_list = team.room();
    const float* const mass = kind == Kind::kListedMass ? of_list : scores + first[row];
    if (kind == Kind::kListedMass) {
      const std::int32_t* const list = index + first[row];
      n = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return list[i] < 0 ? 0 : 1; });
      team.each(n, [&](std::int64_t i) { of_list[i] = std::bit_cast<float>(kv.word(word, static_cast<std::int32_t>(row), list[i])); });
    }
    const double wanted = limit * team.template sum<double>(n, [&](std::int64_t i) { return double{mass[i]}; });
    const std::int32_t least = kind == Kind::kLeadingMass && n > 0 ? 1 : 0;
    std::int32_t held = 0;
    if constexpr (Team::kOnDevice) {
      held = count_by_cut(team, mass, n, wanted);
    } else {
      if (kind == Kind::kListedMass) std::sort(of_list, of_list + n, std::greater<>());
      for (double sum = 0; held < n && sum < wanted; ++held) sum += double{mass[held]};
    }
    return held < least ? least : held;
  }
  // Without an order: finds the least mass that is taken, bit by bit.
  template <class Team>
  [[nodiscard]] KVLAB_BODY static std::int32_t count_by_cut(const Team& team, const float* mass, std::int32_t n, double wanted) {
    const auto key = [&](std::int64_t i) { return std::bit_cast<std::uint32_t>(mass[i]); };
    const auto sum_from = [&](std::uint32_t least) {
      return team.template sum<double>(n, [&](std::int64_t i) { return key(i) < least ? 0.0 : double{mass[i]}; });
    };
    if (!(wanted > 0)) return 0;
    std::uint32_t cut = 0;
    for (int bit = 30; bit >= 0; --bit)
      if (sum_from(cut | 1U << bit) >= wanted) cut |= 1U << bit;
    const auto above = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return key(i) > cut ? 1 : 0; });
    const auto from = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return key(i) >= cut ? 1 : 0; });
    double sum = sum_from(cut + 1);
    std::int32_t taken = above;
    for (; taken < from && sum < wanted; ++taken) sum += double{std::bit_cast<float>(cut)};
    return taken;
  }
};
KVLAB_ROW_OP(CountScores)

}  // namespace kvlab
