#pragma once

#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// target becomes -1 where the similarity is below tau: `fixed`, or a running mean per sequence over all heads (D2O, Wan et al. 2025,
// section 3.3): first the mean similarity of the tokens dropped now, later (1 - share) tau + share * that mean. head_mean: the j-th dropped
// tokens of all heads share their mean similarity. Rows without kept tokens take no part.
struct MergeGate {
  PartedRows parts;
  const float* similarity = nullptr;           // [total_dropped()]
  std::int32_t* target = nullptr;              // [total_dropped()] in and out
  bool running = false;                        // a flag: on shapes `thresholds` is null
  float* thresholds = nullptr;                 // in CPU memory; line threshold_of[s] is sequence s's; below -1: none yet
  const std::int32_t* threshold_of = nullptr;  // [num_sequences]
  float share = 0.5F;
  float fixed = 0.0F;
  bool head_mean = false;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = parts.total_dropped();
    return {.op = "merge_gate",
            .rows = parts.kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = 12 * n + (running ? 8 * rows() : 0),
            .flops = 4 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_sequences(); }
  void shapes(auto&& visit) { visit_parts(parts, visit), visit(threshold_of, rows()); }
  void results(auto&& visit) {
    std::int32_t lines = 0;
    for (std::int32_t s = 0; running && s < rows(); ++s) lines = threshold_of[s] < lines ? lines : threshold_of[s] + 1;
    visit(thresholds, lines);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t sequence) const {
    const auto begin = static_cast<std::int32_t>(sequence) * parts.kv.kv_heads, end = begin + parts.kv.kv_heads;
    const float threshold = running ? threshold_now(team, sequence, begin, end) : fixed;
    std::int32_t most = 0;
    for (std::int32_t r = begin; r < end; ++r) most = parts.num_dropped(r) > most ? parts.num_dropped(r) : most;
    team.each(most, [&](std::int64_t j) {
      const float together = head_mean ? mean_of(begin, end, j) : 0.0F;
      for (std::int32_t r = begin; r < end; ++r) {
        const std::int64_t i = parts.dropped_first[r] + j;
        if (j < parts.num_dropped(r) && !((head_mean ? together : similarity[i]) >= threshold)) target[i] = -1;
      }
    });
  }

 private:
  template <class Team>
  KVLAB_BODY float threshold_now(const Team& team, std::int64_t sequence, std::int32_t begin, std::int32_t end) const {
    const std::int64_t first = parts.dropped_first[begin], n = parts.dropped_first[end] - first;
    const auto sum = team.template sum<double>(
        n, [&](std::int64_t i) { return target[first + i] < 0 ? 0.0 : static_cast<double>(similarity[first + i]); });
    const auto count = team.template sum<double>(n, [&](std::int64_t i) { return target[first + i] < 0 ? 0.0 : 1.0; });
    float& threshold = thresholds[threshold_of[sequence]];
    const auto mean = static_cast<float>(sum / count);
    const float now = count == 0 ? threshold : threshold < -1.0F ? mean : (1.0F - share) * threshold + share * mean;
    team.once([] {});
    team.once([&] { threshold = now; });
    return now;
  }

  KVLAB_BODY float mean_of(std::int32_t begin, std::int32_t end, std::int64_t j) const {
    double sum = 0;
    std::int32_t count = 0;
    for (std::int32_t r = begin; r < end; ++r) {
      const std::int64_t i = parts.dropped_first[r] + j;
      if (j >= parts.num_dropped(r) || target[i] < 0) continue;
      sum += static_cast<double>(similarity[i]);
      ++count;
    }
    return count == 0 ? 0.0F : static_cast<float>(sum / count);
  }
};
KVLAB_ROW_OP(MergeGate)

// Values of dropped tokens are spread over the kept tokens that follow, by chance (CaM, Zhang et al. 2024, section 3). With probability
//   p = min(1, mass_i / mean of their mass)     (0 / 0, or no later kept token: 0)
// v_i / m of dropped token i is added to the values of the next m = min(window, remaining) kept tokens of its row. Keys stay. The draw is
// keyed by (seeds[s], KV head, position of the token).
struct MergeWindow {
  PartedRows parts;
  std::int32_t window = 32;
  const float* mass = nullptr;          // [parts.kv.total()] accumulated attention, >= 0
  const std::int64_t* seeds = nullptr;  // [num_sequences] in CPU memory

  // As if every dropped token were merged: its value is read, kept tokens' are read and written, one multiply-add per channel and kept
  // token of a window, which is taken to be full.
  [[nodiscard]] OpCall cost() const {
    const KvRows& kv = parts.kv;
    OpCall c{
        .op = "merge_window", .rows = kv.num_rows, .tokens = parts.total_dropped(), .bytes = 4 * kv.total() + 4 * parts.total_dropped()};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t dropped = parts.num_dropped(r), kept = parts.num_kept(r), together = std::min<std::int64_t>(window, kept);
      const std::int64_t receivers = std::min(kept, dropped * together);
      c.outputs += receivers;
      c.bytes += (dropped + 2 * receivers) * kv.head_dim * kv.kv_bytes;
      c.flops += dropped * together * (2 * kv.head_dim + 1);
    }
    return c;
  }
  // A team takes kPart kept tokens of a row, and kTile dropped ones at a time.
  static constexpr std::int64_t kPart = 64, kTile = 256;
  [[nodiscard]] std::int64_t rows() const {
    if (parts.total_dropped() == 0) return 0;
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < parts.kv.num_rows; ++r) most = std::max<std::int64_t>(most, parts.num_kept(r));
    return parts.kv.num_rows * ceil_div(most, kPart);
  }
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const { return kTile; }
  void shapes(auto&& visit) { visit_parts(parts, visit), visit(seeds, parts.kv.num_sequences()); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const KvRows& kv = parts.kv;
    const auto row = static_cast<std::int32_t>(item % kv.num_rows);
    const std::int64_t first = item / kv.num_rows * kPart, rest = parts.num_kept(row) - first, d = kv.head_dim;
    if (rest <= 0) return;
    const std::int64_t n = rest < kPart ? rest : kPart, end = dropped_before(row, first + n - 1);
    auto* const receivers = reinterpret_cast<std::int32_t*>(team.room());
    for (std::int64_t at = dropped_before(row, first - window); at < end; at += kTile) {
      const std::int64_t tile_end = end - at < kTile ? end : at + kTile;
      team.each(tile_end - at, [&](std::int64_t i) { receivers[i] = receivers_of(row, at + i); });
      team.each(n * d, [&](std::int64_t i) { receive(row, first + i / d, i % d, receivers, at, tile_end); });
    }
  }

 private:
  // Dropped tokens of the row before kept token j.
  [[nodiscard]] KVLAB_BODY std::int64_t dropped_before(std::int32_t row, std::int64_t j) const {
    return j < 0 ? 0 : parts.kept[parts.kept_first[row] + j] - j;
  }
  // Kept tokens that get a share of dropped token i: 0 or those of its window.
  [[nodiscard]] KVLAB_BODY std::int32_t receivers_of(std::int32_t row, std::int64_t i) const {
    const KvRows& kv = parts.kv;
    const std::int32_t token = parts.dropped[parts.dropped_first[row] + i], next = token - static_cast<std::int32_t>(i);
    const std::int32_t left = parts.num_kept(row) - next, count = window < left ? window : left;
    const float* const of_row = mass + kv.first[row];
    double sum = 0;
    for (std::int32_t j = 0; j < count; ++j) sum += static_cast<double>(of_row[parts.kept[parts.kept_first[row] + next + j]]);
    const double draw =
        uniform_draw(static_cast<std::uint64_t>(seeds[kv.sequence(row)]), Purpose::kMerge, static_cast<std::uint64_t>(row % kv.kv_heads),
                     static_cast<std::uint64_t>(kv.position[kv.slot(row, token)]));
    return draw * sum < static_cast<double>(of_row[token]) * count ? count : 0;  // without dividing: the mean may be 0
  }
  // Adds the shares of dropped tokens [begin, end) of which kept token j is in the window, in their order.
  KVLAB_BODY void receive(std::int32_t row, std::int64_t j, std::int64_t c, const std::int32_t* receivers, std::int64_t begin,
                          std::int64_t end) const {
    const KvRows& kv = parts.kv;
    const std::int64_t from = dropped_before(row, j - window), to = dropped_before(row, j);
    const std::int64_t at = kv.slot(row, parts.kept[parts.kept_first[row] + j]) * kv.head_dim + c;
    float value = element_at(kv.v, at, kv.type);
    for (std::int64_t i = from < begin ? begin : from; i < (to < end ? to : end); ++i) {
      if (receivers[i - begin] == 0) continue;
      const std::int64_t slot = kv.slot(row, parts.dropped[parts.dropped_first[row] + i]);
      value += element_at(kv.v, slot * kv.head_dim + c, kv.type) / static_cast<float>(receivers[i - begin]);
    }
    set_element(kv.v, at, kv.type, value);
  }
};
KVLAB_ROW_OP(MergeWindow)

}  // namespace kvlab
