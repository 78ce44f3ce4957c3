#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_gradient/attention_gradient.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

using GradientMap = Eigen::Map<RowMatrix, 0, Eigen::OuterStride<>>;
constexpr std::int64_t kQueryBlock = 64;

struct HeadGradient {
  RowMatrix dk, dv;  // [new_tokens, head_dim]
};

// Logits of queries [first, first + count) become probabilities.
void softmax_rows(const AttentionGradient& a, std::int64_t first, RowMatrix& p) {
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    const std::int64_t end = a.kv_before + first + t + 1, begin = a.window == 0 ? 0 : std::max<std::int64_t>(0, end - a.window);
    float* const line = p.row(t).data();
    std::fill(line, line + begin, 0.0F);
    softmax_line(line + begin, static_cast<std::int32_t>(end - begin), static_cast<std::int32_t>(p.cols() - begin));
  }
}

HeadGradient gradient_of_head(const AttentionGradient& a, std::int64_t head) {
  const std::int64_t d = a.head_dim, n = a.new_tokens, kv_head = head / (a.q_heads / a.kv_heads);
  const Eigen::OuterStride<> q_stride(a.q_heads * d), kv_stride(a.kv_heads * d);
  const RowMap q(a.q + head * d, n, d, q_stride), d_out(a.d_out + head * d, n, d, q_stride);
  const RowMap k(a.k + kv_head * d, a.kv_before + n, d, kv_stride), v(a.v + kv_head * d, a.kv_before + n, d, kv_stride);
  GradientMap dq(a.dq + head * d, n, d, q_stride);
  HeadGradient sum{RowMatrix::Zero(n, d), RowMatrix::Zero(n, d)};
  RowMatrix p, ds;
  for (std::int64_t first = 0; first < n; first += kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, n - first), own = first + count, columns = a.kv_before + own;
    const auto queries = q.middleRows(first, count), out = d_out.middleRows(first, count);
    p.noalias() = a.scale * (queries * k.topRows(columns).transpose());
    softmax_rows(a, first, p);
    sum.dv.topRows(own).noalias() += p.rightCols(own).transpose() * out;
    ds.noalias() = out * v.topRows(columns).transpose();
    for (std::int64_t t = 0; t < count; ++t) {
      auto line = ds.row(t).array();
      line = a.scale * p.row(t).array() * (line - p.row(t).dot(ds.row(t)));
    }
    dq.middleRows(first, count).noalias() = ds * k.topRows(columns);
    sum.dk.topRows(own).noalias() += ds.rightCols(own).transpose() * queries;
  }
  return sum;
}

}  // namespace

void run_cpu(const AttentionGradient& a) {
  std::vector<HeadGradient> of_head(static_cast<std::size_t>(a.q_heads));
  for_each_in_parallel(a.q_heads, [&](std::int64_t h) { of_head[static_cast<std::size_t>(h)] = gradient_of_head(a, h); });
  const std::int64_t d = a.head_dim, group = a.q_heads / a.kv_heads;
  std::fill_n(a.dk, a.new_tokens * a.kv_heads * d, 0.0F);
  std::fill_n(a.dv, a.new_tokens * a.kv_heads * d, 0.0F);
  for (std::int64_t h = 0; h < a.q_heads; ++h) {
    const HeadGradient& part = of_head[static_cast<std::size_t>(h)];
    const std::int64_t at = h / group * d;
    GradientMap(a.dk + at, a.new_tokens, d, Eigen::OuterStride<>(a.kv_heads * d)) += part.dk;
    GradientMap(a.dv + at, a.new_tokens, d, Eigen::OuterStride<>(a.kv_heads * d)) += part.dv;
  }
}

}  // namespace kvlab
