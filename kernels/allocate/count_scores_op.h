#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Counts entries of each row, summed in double:
//   kAtLeast, kAbove  scores at least, or above, `limit`, without NaN
//   kLeadingMass      the leading ones with share `limit` of the sum, at least 1; rows descend and are not negative
//   kListedMass       the fewest of the listed tokens' words (float32, not negative) with this share: ZipVL, He et al. 2024,
//     arXiv:2410.08584, eq. 4
//   kListedFrom       list entries of at least `limit`
// or computes how many each row of a pool takes, at least 1:
//   kMeanAbove        those above `limit`, mean over the rows, rounded down, at most given[r]: InfiniGen, Lee et al. 2024, section 4.3
//   kEntropyShare     given[r] times the scores' mean entropy over the rows, over the mean of the known entropies of the pool's layers; at
//     most twice given[r] and the row's length. ActQKV, Xiao et al. 2025, arXiv:2502.13542; the formulas are our definition
struct CountScores {
  enum class Kind : std::uint8_t { kAtLeast, kAbove, kLeadingMass, kListedMass, kListedFrom, kMeanAbove, kEntropyShare };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;        // [first[num_rows]]
  Kind kind = Kind::kAtLeast;
  double limit = 0;
  std::int32_t* count = nullptr;  // [num_rows] out, in CPU memory; not written on shapes
  std::int32_t rows_per_pool = 1;
  const std::int32_t* given = nullptr;  // [num_rows]
  const std::int32_t* index = nullptr;  // [first[num_rows]] of kListed...; -1 at the lists' ends
  KvRows kv = {};                       // of kListedMass
  std::int32_t word = 0;
  float* const* entropies = nullptr;  // [pools] -> [num_layers] of kEntropyShare, 0: unknown
  std::int32_t layer = 0, num_layers = 0;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[num_rows], written = 4LL * num_rows;
    OpCall c{.op = "count_scores", .rows = num_rows, .tokens = n, .outputs = num_rows, .bytes = 4 * n + written, .flops = n};
    if (kind == Kind::kMeanAbove) c.op = "fetch_counts";
    if (kind == Kind::kLeadingMass) c.flops = 2 * n;
    if (kind == Kind::kListedMass) c.op = "cover_mass", c.bytes = 8 * n + written, c.flops = 3 * n;
    if (kind == Kind::kListedFrom) c.op = "count_from", c.bytes = 2 * written, c.flops = 0;
    if (kind == Kind::kEntropyShare) c.op = "entropy_share", c.bytes += 4 * rows() * num_layers, c.flops = 4 * n;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows / rows_per_pool; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return kind == Kind::kListedMass ? first[row + 1] - first[row] : 0; }
  void shapes(auto&& visit) {
    visit(first, num_rows + 1), visit(given, num_rows), visit(entropies, rows());
    if (kind == Kind::kListedMass) visit(kv);
  }
  void results(auto&& visit) { visit(count, num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t pool) const {
    const std::int64_t row0 = pool * rows_per_pool, begin = first[row0], n = first[row0 + rows_per_pool] - begin;
    double found = 0;
    if (kind == Kind::kLeadingMass || kind == Kind::kListedMass)
      found = count_mass(team, row0, static_cast<std::int32_t>(n));
    else
      found = team.template sum<double>(n, [&](std::int64_t i) { return term(begin + i); });
    const double scale = kind == Kind::kEntropyShare ? entropy_scale(team, pool, n, found) : 1;
    team.each(rows_per_pool, [&](std::int64_t r) { count[row0 + r] = static_cast<std::int32_t>(of_row(row0 + r, found, scale)); });
  }

 private:
  [[nodiscard]] KVLAB_BODY double term(std::int64_t i) const {
    if (kind == Kind::kListedFrom) return index[i] >= limit ? 1 : 0;
    const double x = scores[i];
    if (kind == Kind::kEntropyShare) return x > 0 ? -(x * std::log(x) / rows_per_pool) : 0;
    return (kind == Kind::kAtLeast ? x >= limit : x > limit) ? 1 : 0;
  }
  [[nodiscard]] KVLAB_BODY double of_row(std::int64_t r, double found, double scale) const {
    if (kind != Kind::kMeanAbove && kind != Kind::kEntropyShare) return found;
    double wanted = std::floor(found / rows_per_pool), most = given[r];
    if (kind == Kind::kEntropyShare) {
      wanted = std::nearbyint(most * scale), wanted = 2 * most < wanted ? 2 * most : wanted;
      most = static_cast<double>(first[r + 1] - first[r]);
    }
    wanted = wanted < 1 ? 1 : wanted;
    return most < wanted ? most : wanted;
  }
  template <class Team>
  [[nodiscard]] KVLAB_BODY double entropy_scale(const Team& team, std::int64_t pool, std::int64_t n, double entropy) const {
    float* const of_layers = entropies[pool];
    team.once([&] {
      if (n > 0) of_layers[layer] = static_cast<float>(entropy);
    });
    double known = 0, layers = 0;
    for (std::int32_t l = 0; l < num_layers; ++l)
      if (of_layers[l] > 0) known += double{of_layers[l]}, layers += 1;
    return entropy > 0 ? entropy / (known / layers) : 1.0;
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
  // Finds the least mass that is taken, bit by bit.
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
