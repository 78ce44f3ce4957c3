#pragma once

#include <bit>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Chooses `kept` tokens: all in [0, first_end) and [last_begin, tokens), and the best between. Scores are smoothed per width: the largest
// of that many neighbours (odd; cut at the prompt's ends). Widths have equal shares, rounded up from the first on; each takes the best
// tokens not yet taken (ties: first). ILRe: Liang et al. 2025, arXiv:2508.17892, with equal shares.
struct QuotaSelect {
  std::int32_t tokens = 0, first_end = 0, last_begin = 0, kept = 0;
  const std::int32_t* widths = nullptr;  // [num_widths]
  std::int32_t num_widths = 0;
  const float* scores = nullptr;  // [tokens]
  std::int32_t* index = nullptr;  // [kept] out, ascending

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = tokens, steps = std::bit_width(static_cast<std::uint32_t>(tokens));
    return {.op = "quota_select",
            .rows = 1,
            .tokens = n,
            .outputs = kept,
            .bytes = 4 * (num_widths * n + kept),
            .flops = num_widths * n * (2 + steps)};
  }
  [[nodiscard]] std::int64_t rows() const { return 1; }
  void shapes(auto&& visit) { visit(widths, num_widths); }
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return 3LL * tokens; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t /*row*/) const {
    float *const taken = team.room(), *const smooth = taken + tokens;
    auto* const free = reinterpret_cast<std::int32_t*>(smooth + tokens);
    team.each(tokens, [&](std::int64_t i) { taken[i] = i < first_end || i >= last_begin ? 1.0F : 0.0F; });
    auto left = kept - static_cast<std::int32_t>(team.template sum<std::int64_t>(tokens, [&](std::int64_t i) { return taken[i] != 0; }));
    for (std::int32_t w = 0; w < num_widths; ++w) {
      const std::int32_t quota = (left + num_widths - w - 1) / (num_widths - w);
      const auto is_free = [&](std::int64_t i) { return taken[i] == 0; };
      const auto n = static_cast<std::int32_t>(team.pack(tokens, is_free, [&](std::int64_t k, std::int64_t i) {
        free[k] = static_cast<std::int32_t>(i), smooth[k] = largest_nearby(i, widths[w] / 2);
      }));
      team.best(
          n, quota, [&](std::int32_t k) { return smooth[k]; }, [&](std::int32_t k) { taken[free[k]] = 1.0F; });
      left -= quota;
    }
    team.pack(
        tokens, [&](std::int64_t i) { return taken[i] != 0; },
        [&](std::int64_t k, std::int64_t i) { index[k] = static_cast<std::int32_t>(i); });
  }

 private:
  [[nodiscard]] KVLAB_BODY float largest_nearby(std::int64_t i, std::int64_t half) const {
    const std::int64_t end = i + half + 1 < tokens ? i + half + 1 : tokens;
    float largest = scores[i - half > 0 ? i - half : 0];
    for (std::int64_t j = i - half > 0 ? i - half : 0; j < end; ++j) largest = largest < scores[j] ? scores[j] : largest;
    return largest;
  }
};
KVLAB_ROW_OP(QuotaSelect)

}  // namespace kvlab
