#pragma once

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

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

}  // namespace kvlab
