#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "kernels/select/antidiagonal_blocks/antidiagonal_blocks.h"

namespace kvlab {

namespace {

using GroupMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The tokens of each group side by side, keys in order and queries in reverse order, so that a product of two lines is an antidiagonal sum.
GroupMatrix folded(const float* x, std::int64_t tokens, std::int64_t row_stride, std::int64_t head_dim, std::int64_t first_position,
                   std::int64_t stride, bool reverse) {
  const std::int64_t first = first_position / stride;
  GroupMatrix lines = GroupMatrix::Zero((first_position + tokens - 1) / stride - first + 1, stride * head_dim);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t position = first_position + i, u = reverse ? stride - 1 - position % stride : position % stride;
    lines.row(position / stride - first).segment(u * head_dim, head_dim) =
        Eigen::Map<const Eigen::RowVectorXf>(x + i * row_stride, head_dim);
  }
  return lines;
}

// Marks the first and the own block, then others by falling sum, until they hold the threshold of the total.
void mark_mass(const std::vector<double>& sums, double threshold, std::int32_t* words) {
  const auto own = static_cast<std::int32_t>(sums.size()) - 1;
  const auto at = [&](std::int32_t j) { return sums[static_cast<std::size_t>(j)]; };
  const double wanted = threshold * std::accumulate(sums.begin(), sums.end(), 0.0);
  mark(words, 0), mark(words, own);
  double held = at(own) + (own > 0 ? at(0) : 0);
  std::vector<std::int32_t> order(static_cast<std::size_t>(std::max(0, own - 1)));
  std::iota(order.begin(), order.end(), 1);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  for (const std::int32_t j : order) {
    if (threshold < 1 && held >= wanted) return;
    mark(words, j);
    held += at(j);
  }
}

void mark_head(const AntidiagonalBlocks& a, std::int64_t head) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim, per_block = p.block / a.stride, first = p.kv_before / a.stride;
  const GroupMatrix q = folded(p.query(0, head), p.new_tokens, p.q_heads * d, d, p.kv_before, a.stride, true);
  const GroupMatrix k = folded(p.key(0, head), p.end(), p.kv_heads * d, d, 0, a.stride, false);
  const float scale = 1.0F / (static_cast<float>(a.stride) * std::sqrt(static_cast<float>(d)));
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t own = p.first_block() + b;
    std::vector<double> sums(static_cast<std::size_t>(own + 1));
    const std::int64_t begin = std::max(own * per_block, first), end = std::min((own + 1) * per_block, first + q.rows());
    const GroupMatrix scores = scale * (q.middleRows(begin - first, end - begin) * k.topRows(end).transpose());
    for (std::int64_t g = begin; g < end; ++g) {
      Eigen::ArrayXf row = scores.row(g - begin).head(g + 1).transpose().array();
      row = (row - row.maxCoeff()).exp();
      row /= row.sum();
      for (std::int64_t j = 0; j <= g; ++j) sums[static_cast<std::size_t>(j / per_block)] += row[j];
    }
    mark_mass(sums, a.threshold, a.marks + (head * p.num_query_blocks() + b) * p.mark_words());
  }
}

}  // namespace

void run_cpu(const AntidiagonalBlocks& a) {
  if (a.prompt.new_tokens == 0) return;
  for_each_in_parallel(a.prompt.q_heads, [&](std::int64_t head) { mark_head(a, head); });
}

}  // namespace kvlab
