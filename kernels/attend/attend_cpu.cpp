#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attend/attend.h"

namespace kvlab {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
using OutMap = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The rows of one KV head in one query block: all group heads of all its queries, each a line of z.
struct Block {
  const Attend& a;
  std::int32_t row;
  const Queries& q;
  Matrix queries;  // [count * group, d]
  Matrix z;        // [count * group, tokens over all segments]
};

void gather_queries(Block& b) {
  const KvRows& kv = b.a.segments[0].kv;
  const std::int32_t d = kv.head_dim, heads = kv.kv_heads * kv.group, head0 = b.row % kv.kv_heads * kv.group;
  b.queries.resize(static_cast<Eigen::Index>(b.q.count) * kv.group, d);
  for (std::int32_t t = 0; t < b.q.count; ++t) {
    const Map lines(b.q.data + (static_cast<std::int64_t>(t) * heads + head0) * d, kv.group, d, Eigen::OuterStride<>(d));
    b.queries.middleRows(static_cast<Eigen::Index>(t) * kv.group, kv.group) = lines / std::sqrt(static_cast<float>(d));
  }
}

void mask(Block& b, const Segment& s, std::int64_t column, std::int64_t i, std::int32_t token) {
  const std::int32_t position = s.kv.position[s.kv.slot(b.row, token)];
  for (std::int32_t t = 0; t < b.q.count; ++t)
    if (position > b.q.first_position + t)
      b.z.block(static_cast<Eigen::Index>(t) * s.kv.group, column + i, s.kv.group, 1).setConstant(kMasked);
}

// Calls f(keys or values as a matrix, first column) for stretches of the segment's tokens; index lists are split where they jump.
template <class F>
void for_each_stretch(const Segment& s, std::int32_t row, F&& f) {
  if (s.index == nullptr) {
    for_each_run(s.kv, row, [&](const KvRun& run) { f(run.slot, run.count, run.begin); });
    return;
  }
  const std::int64_t begin = s.index_first[row], end = s.index_first[row + 1];
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t slot = s.kv.slot(row, s.index[i]);
    std::int64_t next = i + 1;
    while (next < end && s.kv.slot(row, s.index[next]) == slot + (next - i)) ++next;
    f(slot, next - i, i - begin);
    i = next;
  }
}

void fill_logits(Block& b, const Segment& s, std::int64_t column) {
  const std::int32_t d = s.kv.head_dim;
  const float weight = s.log_weight == nullptr ? 0.0F : s.log_weight[b.row];
  for_each_stretch(s, b.row, [&](std::int64_t slot, std::int64_t count, std::int64_t at) {
    const Map keys(s.kv.k + slot * d, count, d, Eigen::OuterStride<>(d));
    b.z.middleCols(column + at, count).noalias() = b.queries * keys.transpose();
    if (weight != 0.0F) b.z.middleCols(column + at, count).array() += weight;
    for (Eigen::Index line = 0; s.head_log_weight != nullptr && line < b.z.rows(); ++line)
      b.z.row(line).segment(column + at, count).array() +=
          s.head_log_weight[static_cast<Eigen::Index>(b.row) * s.kv.group + line % s.kv.group];
  });
  const std::int64_t n = s.tokens(b.row);
  for (std::int64_t i = n - 1; i >= 0; --i) {  // positions ascend, so only a tail can lie in the first query's future
    const std::int32_t token = s.index == nullptr ? static_cast<std::int32_t>(i) : s.index[s.index_first[b.row] + i];
    if (s.kv.position[s.kv.slot(b.row, token)] <= b.q.first_position) break;
    mask(b, s, column, i, token);
  }
}

void softmax(Block& b, float* log_sum) {
  const KvRows& kv = b.a.segments[0].kv;
  const std::int32_t heads = kv.kv_heads * kv.group, head0 = b.row % kv.kv_heads * kv.group;
  for (Eigen::Index line = 0; line < b.z.rows(); ++line) {
    auto z = b.z.row(line).array();
    const float top = z.size() == 0 ? kMasked : z.maxCoeff();
    float sum = 0.0F;
    if (top == kMasked) {
      z.setZero();
    } else {
      z = (z - top).exp();
      sum = z.sum();
      z /= sum;
    }
    if (log_sum != nullptr) log_sum[line / kv.group * heads + head0 + line % kv.group] = top == kMasked ? kMasked : top + std::log(sum);
  }
}

void add_values(const Block& b, const Segment& s, std::int64_t column, Matrix& out) {
  const std::int32_t d = s.kv.head_dim;
  for_each_stretch(s, b.row, [&](std::int64_t slot, std::int64_t count, std::int64_t at) {
    const Map values(s.kv.v + slot * d, count, d, Eigen::OuterStride<>(d));
    out.noalias() += b.z.middleCols(column + at, count) * values;
  });
}

void run_row(const Attend& a, std::int32_t row) {
  const KvRows& kv = a.segments[0].kv;
  const std::int32_t sequence = kv.sequence(row);
  Block b{a, row, a.queries[sequence], {}, {}};
  if (b.q.count == 0) return;
  gather_queries(b);
  std::int64_t columns = 0;
  for (std::int32_t s = 0; s < a.num_segments; ++s) columns += a.segments[s].tokens(row);
  b.z.resize(b.queries.rows(), columns);
  std::int64_t at = 0;
  for (std::int32_t s = 0; s < a.num_segments; at += a.segments[s].tokens(row), ++s) fill_logits(b, a.segments[s], at);
  softmax(b, a.log_sum == nullptr ? nullptr : a.log_sum[sequence]);
  if (a.probabilities != nullptr) Eigen::Map<Matrix>(a.probabilities[row], b.z.rows(), b.z.cols()) = b.z;
  Matrix out = Matrix::Zero(b.queries.rows(), kv.head_dim);
  at = 0;
  for (std::int32_t s = 0; s < a.num_segments; at += a.segments[s].tokens(row), ++s) add_values(b, a.segments[s], at, out);
  const std::int32_t heads = kv.kv_heads * kv.group, head0 = row % kv.kv_heads * kv.group;
  for (std::int32_t t = 0; t < b.q.count; ++t) {
    OutMap lines(a.out[sequence] + (static_cast<std::int64_t>(t) * heads + head0) * kv.head_dim, kv.group, kv.head_dim,
                 Eigen::OuterStride<>(kv.head_dim));
    lines = out.middleRows(static_cast<Eigen::Index>(t) * kv.group, kv.group);
  }
}

}  // namespace

void run_cpu(const Attend& a) {
  if (a.num_segments == 0) return;
  for (std::int32_t row = 0; row < a.segments[0].kv.num_rows; ++row) run_row(a, row);
}

}  // namespace kvlab
