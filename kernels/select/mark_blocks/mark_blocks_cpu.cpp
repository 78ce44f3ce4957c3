#include <algorithm>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "kernels/select/mark_blocks/mark_blocks_body.h"

namespace kvlab {

namespace {

// Visible pairs of the last w queries.

class MarkingThread : public OneThread {
 public:
  using OneThread::OneThread;

  static void mark(std::int32_t* words, std::int64_t i) {
    words[i / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(words[i / 32]) | std::uint32_t{1} << (i % 32));
  }
  static float dot(const float* x, const float* y, std::int64_t n) { return lane_dot(x, y, n); }
  static void soften(float* row, std::int64_t n) {
    Eigen::Map<Eigen::ArrayXf> x(row, n);
    x = (x - x.maxCoeff()).exp();
    x /= x.sum();
  }
  template <class Score, class F>
  static void best(std::int64_t n, std::int64_t k, Score&& score, F&& f) {
    for (const std::int32_t i : falling(n, std::clamp<std::int64_t>(k, 0, n), score)) f(i);
  }
  template <class Score, class More, class F>
  static std::int64_t best_while(std::int64_t n, Score&& score, double taken, More&& more, F&& f) {
    std::int64_t count = 0;
    for (const std::int32_t i : falling(n, n, score)) {
      if (!more(taken, score(i))) break;
      f(i);
      taken += score(i);
      ++count;
    }
    return count;
  }
  template <class Score>
  static double falling_sum(std::int64_t n, Score&& score) {
    double sum = 0;
    for (const std::int32_t i : falling(n, n, score)) sum += score(i);
    return sum;
  }

 private:
  template <class Score>
  static std::vector<std::int32_t> falling(std::int64_t n, std::int64_t k, Score&& score) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](std::int32_t a, std::int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
    order.resize(static_cast<std::size_t>(k));
    return order;
  }
};

// Each group's tokens in a line, keys in order, queries in reverse: a product of two lines is an antidiagonal sum.
RowMatrix folded(const float* x, std::int64_t tokens, std::int64_t row_stride, std::int64_t head_dim, std::int64_t first_position,
                 std::int64_t stride, bool reverse) {
  const std::int64_t first = first_position / stride;
  RowMatrix lines = RowMatrix::Zero((first_position + tokens - 1) / stride - first + 1, stride * head_dim);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t position = first_position + i, u = reverse ? stride - 1 - position % stride : position % stride;
    lines.row(position / stride - first).segment(u * head_dim, head_dim) =
        Eigen::Map<const Eigen::RowVectorXf>(x + i * row_stride, head_dim);
  }
  return lines;
}

void mark_antidiagonals(const MarkBlocks& a, std::int64_t head) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t d = p.head_dim, per_block = p.block / a.stride, first = p.kv_before / a.stride;
  const RowMatrix q = folded(p.query(0, head), p.new_tokens, p.q_heads * d, d, p.kv_before, a.stride, true);
  const RowMatrix k = folded(p.key(0, head), p.end(), p.kv_heads * d, d, 0, a.stride, false);
  const float scale = 1.0F / (static_cast<float>(a.stride) * std::sqrt(static_cast<float>(d)));
  for (std::int64_t b = 0; b < p.num_query_blocks(); ++b) {
    const std::int64_t own = p.first_block() + b;
    std::vector<double> sums(static_cast<std::size_t>(own + 1));
    const std::int64_t begin = std::max(own * per_block, first), end = std::min((own + 1) * per_block, first + q.rows());
    const RowMatrix scores = scale * (q.middleRows(begin - first, end - begin) * k.topRows(end).transpose());
    for (std::int64_t g = begin; g < end; ++g) {
      Eigen::ArrayXf row = scores.row(g - begin).head(g + 1).transpose().array();
      MarkingThread::soften(row.data(), g + 1);
      for (std::int64_t j = 0; j <= g; ++j) sums[static_cast<std::size_t>(j / per_block)] += row[j];
    }
    mark_blocks::mark_mass(MarkingThread(nullptr), a, sums.data(), own, mark_blocks::words_of(a, head, b));
  }
}

}  // namespace

void run_cpu(const MarkBlocks& a) {
  if (a.prompt.new_tokens == 0) return;
  const bool antidiagonal = a.kind == MarkBlocks::Kind::kAntidiagonal;
  const auto room = static_cast<std::size_t>(antidiagonal ? 0 : mark_blocks::room_of(a));
  for_each_in_parallel(a.prompt.q_heads, [&](std::int64_t head) {
    if (antidiagonal) return mark_antidiagonals(a, head);
    std::vector<float> own(room);
    mark_blocks::mark_head(MarkingThread(own.data()), a, head);
  });
}

}  // namespace kvlab
