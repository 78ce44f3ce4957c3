#include "kernels/select/window_sums_cpu.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/dot_cpu.h"

namespace kvlab {

WindowSums window_sums(const PromptBlocks& p, std::int64_t window, std::int64_t head) {
  const std::int64_t w = std::min(window, p.new_tokens), n = p.end();
  const float scale = 1.0F / std::sqrt(static_cast<float>(p.head_dim));
  WindowSums sums{std::vector<float>(static_cast<std::size_t>(n)), std::vector<float>(static_cast<std::size_t>(n))};
  std::vector<float> row(static_cast<std::size_t>(n));
  for (std::int64_t i = p.new_tokens - w; i < p.new_tokens; ++i) {
    const std::int64_t visible = p.kv_before + i + 1;
    const float* const q = p.query(i, head);
    for (std::int64_t j = 0; j < visible; ++j) row[static_cast<std::size_t>(j)] = scale * lane_dot(q, p.key(j, head), p.head_dim);
    Eigen::Map<Eigen::ArrayXf> x(row.data(), visible);
    x = (x - x.maxCoeff()).exp();
    x /= x.sum();
    for (std::int64_t j = 0; j < visible; ++j) {
      sums.columns[static_cast<std::size_t>(j)] += row[static_cast<std::size_t>(j)];
      sums.diagonals[static_cast<std::size_t>(visible - 1 - j)] += row[static_cast<std::size_t>(j)];
    }
  }
  return sums;
}

std::vector<std::int32_t> best_of(const std::vector<float>& scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const std::int64_t kept = std::clamp<std::int64_t>(k, 0, static_cast<std::int64_t>(order.size()));
  const auto end = order.begin() + kept;
  const auto at = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
  std::partial_sort(order.begin(), end, order.end(),
                    [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  order.erase(end, order.end());
  std::sort(order.begin(), order.end());
  return order;
}

void mark_diagonal(const PromptBlocks& p, std::int64_t head, std::int64_t distance, std::int32_t* marks) {
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t begin = std::max((p.first_block() + b) * p.block, p.kv_before);
    const std::int64_t last = std::min((p.first_block() + b + 1) * p.block, p.end()) - 1;
    if (last < distance) continue;
    std::int32_t* const words = marks + (head * p.num_query_blocks() + b) * p.mark_words();
    for (std::int64_t j = std::max<std::int64_t>(0, begin - distance) / p.block; j <= (last - distance) / p.block; ++j) mark(words, j);
  }
}

std::vector<float> block_means(const float* x, std::int64_t tokens, std::int64_t heads, std::int64_t head, std::int64_t head_dim,
                               std::int64_t first_position, std::int64_t block) {
  const std::int64_t first = first_position / block, blocks = query_blocks(tokens, first_position, static_cast<std::int32_t>(block));
  std::vector<float> means(static_cast<std::size_t>(blocks * head_dim));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t begin = std::max<std::int64_t>(0, (first + b) * block - first_position);
    const std::int64_t end = std::min(tokens, (first + b + 1) * block - first_position);
    Eigen::Map<Eigen::ArrayXf> mean(means.data() + b * head_dim, head_dim);
    for (std::int64_t i = begin; i < end; ++i) mean += Eigen::Map<const Eigen::ArrayXf>(x + (i * heads + head) * head_dim, head_dim);
    mean /= static_cast<float>(end - begin);
  }
  return means;
}

}  // namespace kvlab
