#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Stage 2 of RocketKV, Behnam et al. 2025, arXiv:2502.14051: attention over one value per page and channel, the page's largest where the
// sum of the row's query heads is positive in that channel, else its smallest. Only the channels[r] channels of largest mean |q| count
// (ties to the lower one). Per query head, logits are divided by sqrt(d * share of |q| in these channels), then softmax over the pages. The
// mean over query heads is the score of each token of the page.
struct SignedPages {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, kv_bytes = 2, page_tokens = 1;
  const Queries* queries = nullptr;        // [num_rows / kv_heads], the last of each
  const float* const* bounds = nullptr;    // [num_rows] -> [pages, 2, head_dim], bounds of PageSummaries
  const std::int32_t* channels = nullptr;  // [num_rows] 1 to head_dim
  const std::int64_t* first = nullptr;     // [num_rows + 1] tokens scored, whole pages from the row's begin on
  float* scores = nullptr;                 // [first[num_rows]] out

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "signed_pages", .rows = num_rows};
    for (std::int32_t r = 0; r < num_rows; ++r) {
      const std::int64_t n = first[r + 1] - first[r];
      c.tokens += n;
      c.outputs += n;
      c.bytes += pages(r) * channels[r] * kv_bytes + 4 * n;
      c.flops += pages(r) * group * (2LL * channels[r] + 4);
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 3 * head_dim + 2 * pages(row); }
  void shapes(auto&& visit) {
    visit(queries, num_rows / kv_heads), visit(bounds, num_rows), visit(channels, num_rows), visit(first, num_rows + 1);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t pages(std::int64_t row) const { return (first[row + 1] - first[row]) / page_tokens; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t d = head_dim, n = pages(row);
    if (n == 0) return;
    const float* const q = queries[row / kv_heads].last(row % kv_heads, kv_heads, group, head_dim);
    float *const size = team.room(), *const sum = size + d, *const z = size + 3 * d, *const mean = z + n;
    auto* const order = reinterpret_cast<std::int32_t*>(size + 2 * d);
    team.each(d, [&](std::int64_t c) {
      size[c] = sum[c] = 0.0F;
      for (std::int64_t h = 0; h < group; ++h) size[c] += std::abs(q[h * d + c]), sum[c] += q[h * d + c];
    });
    team.sort(head_dim, order, [&](std::int32_t x, std::int32_t y) { return size[x] > size[y]; });
    team.each(n, [&](std::int64_t p) { mean[p] = 0.0F; });
    for (std::int64_t h = 0; h < group; ++h) add_head(team, row, q + h * d, order, sum, z, mean);
    team.each(n * page_tokens, [&](std::int64_t i) { scores[first[row] + i] = mean[i / page_tokens]; });
  }

 private:
  template <class Team>
  KVLAB_BODY void add_head(const Team& team, std::int64_t row, const float* q, const std::int32_t* order, const float* sum, float* z,
                           float* mean) const {
    const std::int64_t d = head_dim, n = pages(row), chosen = channels[row];
    const float all = team.sum(d, [&](std::int64_t c) { return std::abs(q[c]); });
    const float of_chosen = team.sum(chosen, [&](std::int64_t i) { return std::abs(q[order[i]]); });
    const float share = all > 0 ? of_chosen / all : 1.0F;
    const float scale = share > 0 ? 1.0F / std::sqrt(static_cast<float>(d) * share) : 0.0F;
    team.each(n, [&](std::int64_t p) {
      const float* const of_page = bounds[row] + p * 2 * d;
      float dot = 0.0F;
      for (std::int64_t i = 0; i < chosen; ++i) dot += q[order[i]] * of_page[order[i] + (sum[order[i]] > 0 ? d : 0)];
      z[p] = scale * dot;
    });
    const float top = team.max(n, z[0], [&](std::int64_t p) { return z[p]; });
    team.each(n, [&](std::int64_t p) { z[p] = std::exp(z[p] - top); });
    const float total = team.sum(n, [&](std::int64_t p) { return z[p]; });
    team.each(n, [&](std::int64_t p) { mean[p] += z[p] / total / static_cast<float>(group); });
  }
};
KVLAB_ROW_OP(SignedPages)

}  // namespace kvlab
