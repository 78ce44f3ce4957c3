#include "kernels/mark_top/mark_top.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlab {

// A selection like top_k: scores are read once, the marked ones written.
OpCall call(const MarkTop& a) {
  const std::int64_t n = a.num_rows == 0 ? 0 : a.first[a.num_rows];
  std::int64_t marked = 0;
  for (std::int32_t r = 0; r < a.num_rows; ++r) marked += a.counts[r];
  return {"mark_top", a.num_rows, n, marked, 4 * n + 4 * marked, 2 * n};
}

void run_cpu(const MarkTop& a) {
  std::vector<std::int64_t> order;
  const auto rank = [](float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; };
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const float* scores = a.scores;
    order.clear();
    for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) order.push_back(i);
    const auto cut = order.begin() + std::min<std::int64_t>(a.counts[r], static_cast<std::int64_t>(order.size()));
    const auto better = [scores, rank](std::int64_t x, std::int64_t y) {
      const float score_x = rank(scores[x]), score_y = rank(scores[y]);
      return score_x != score_y ? score_x > score_y : x < y;
    };
    std::nth_element(order.begin(), cut, order.end(), better);
    for (auto i = order.begin(); i != cut; ++i) a.marked[*i] = a.value;
  }
}

}  // namespace kvlab
