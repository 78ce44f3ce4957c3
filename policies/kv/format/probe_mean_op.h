#pragma once

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Mean attention from the probes that could see a token: the sum in word `channel` (float32) over the number of probes at or after its
// position, 0 without any (ZipCache, He et al. 2024, arXiv:2405.14256, eq. 8). Probes of sequence s are the positions [begin[j], end[j]),
// first[s] <= j < first[s + 1].
struct ProbeMean {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1]
  const std::int32_t *begin = nullptr, *end = nullptr;
  float* scores = nullptr;  // [kv.total()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "probe_mean", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n, .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences(), pieces = first[sequences];
    visit(kv), visit(first, sequences + 1), visit(begin, pieces), visit(end, pieces);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const std::int32_t s = kv.sequence(static_cast<std::int32_t>(row));
    const std::int64_t slot = kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i));
    const std::int32_t position = kv.position[slot];
    std::int64_t probes = 0;
    for (std::int64_t j = first[s]; j < first[s + 1]; ++j) {
      const std::int32_t seen = end[j] - (begin[j] < position ? position : begin[j]);
      probes += seen < 0 ? 0 : seen;
    }
    const auto sum = std::bit_cast<float>(kv.words[channel * kv.pool_tokens + slot]);
    scores[kv.first[row] + i] = probes > 0 ? sum / static_cast<float>(probes) : 0.0F;
  }
};
KVLAB_EACH_OP(ProbeMean)

// Number of each row's listed tokens, largest first, that hold at least `share` of the sum of their words (float32, not negative): the
// important tokens of ZipVL (He et al. 2024, arXiv:2410.08584, eq. 4).
struct CoverMass {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] the lists; entries of -1 are at their ends
  const std::int32_t* index = nullptr;
  double share = 0.975;
  std::int32_t* count = nullptr;  // [num_rows] out, in CPU memory; not written where only shapes are known

  // Entries and words are read; three operations per entry.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = first[kv.num_rows];
    return {.op = "cover_mass", .rows = kv.num_rows, .tokens = n, .outputs = kv.num_rows, .bytes = 8 * n + 4 * kv.num_rows, .flops = 3 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return first[row + 1] - first[row]; }
  void shapes(auto&& visit) { visit(kv), visit(first, kv.num_rows + 1); }
  void results(auto&& visit) { visit(count, kv.num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t* const list = index + first[row];
    float* const mass = team.room();
    const auto n = team.template sum<std::int32_t>(first[row + 1] - first[row], [&](std::int64_t i) { return list[i] < 0 ? 0 : 1; });
    team.each(n, [&](std::int64_t i) { mass[i] = std::bit_cast<float>(kv.word(channel, static_cast<std::int32_t>(row), list[i])); });
    const double all = team.template sum<double>(n, [&](std::int64_t i) { return static_cast<double>(mass[i]); });
    std::int32_t held = 0;
    if constexpr (Team::kOnDevice)
      held = count_by_cut(team, mass, n, share * all);
    else
      held = count_sorted(mass, n, share * all);
    team.once([&] { count[row] = held; });
  }

 private:
  [[nodiscard]] static std::int32_t count_sorted(float* mass, std::int32_t n, double wanted) {
    std::sort(mass, mass + n, std::greater<>());
    double sum = 0;
    std::int32_t taken = 0;
    while (taken < n && sum < wanted) sum += static_cast<double>(mass[taken++]);
    return taken;
  }
  // Without an order: finds the least mass that is taken, bit by bit.
  template <class Team>
  [[nodiscard]] KVLAB_BODY static std::int32_t count_by_cut(const Team& team, const float* mass, std::int32_t n, double wanted) {
    const auto key = [&](std::int64_t i) { return std::bit_cast<std::uint32_t>(mass[i]); };
    const auto sum_from = [&](std::uint32_t least) {
      return team.template sum<double>(n, [&](std::int64_t i) { return key(i) < least ? 0.0 : static_cast<double>(mass[i]); });
    };
    if (!(wanted > 0)) return 0;
    std::uint32_t cut = 0;
    for (int bit = 30; bit >= 0; --bit)
      if (sum_from(cut | 1U << bit) >= wanted) cut |= 1U << bit;
    const auto above = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return key(i) > cut ? 1 : 0; });
    const auto from = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return key(i) >= cut ? 1 : 0; });
    double sum = sum_from(cut + 1);
    std::int32_t taken = above;
    for (; taken < from && sum < wanted; ++taken) sum += static_cast<double>(std::bit_cast<float>(cut));
    return taken;
  }
};
KVLAB_ROW_OP(CoverMass)

}  // namespace kvlab
