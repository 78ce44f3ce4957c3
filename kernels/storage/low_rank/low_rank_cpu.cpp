#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/lanes_cpu.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

std::vector<LowRankShape> low_rank_shapes(const LowRankFactor& a) {
  std::vector<LowRankShape> shapes;
  LowRankShape s;
  const std::int32_t heads = a.joint_heads ? a.tokens.kv.kv_heads : 1;
  s.width = std::int64_t{heads} * a.tokens.kv.head_dim;
  for (; s.row < a.tokens.kv.num_rows; s.row += heads) {
    s.entries = a.tokens.entries(s.row);
    if (s.entries == 0) continue;
    shapes.push_back(s);
    s.left += std::int64_t{s.entries} * a.rank, s.right += s.width * a.rank;
  }
  return shapes;
}

void check_heads(const LowRankFactor& a) {
  for (std::int32_t r = 0; a.joint_heads && r < a.tokens.kv.num_rows; ++r)
    if (a.tokens.entries(r) != a.tokens.entries(r / a.tokens.kv.kv_heads * a.tokens.kv.kv_heads))
      throw InternalError("low_rank_factor: lists of a sequence's KV heads differ in length");
}

std::int64_t left_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for (const LowRankShape& s : low_rank_shapes(a)) n += std::int64_t{s.entries} * a.rank;
  return n;
}
std::int64_t right_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for (const LowRankShape& s : low_rank_shapes(a)) n += s.width * a.rank;
  return n;
}

namespace {

OpCall cost_to_unpack(const LowRankFactor& a) {
  const std::int64_t n = a.tokens.total(), exact = a.num_exact(), d = a.tokens.kv.head_dim;
  OpCall c{.op = "low_rank_rebuild", .rows = a.tokens.kv.num_rows, .tokens = n, .outputs = n - exact};
  c.bytes = 2 * (left_numbers(a) + right_numbers(a)) + (n - exact) * d * a.tokens.kv.kv_bytes + a.tokens.list_bytes() + 4 * exact;
  for (const LowRankShape& s : low_rank_shapes(a)) c.flops += 2 * s.entries * s.width * a.rank;
  c.flops -= 2 * exact * d * a.rank;
  if (a.is_pre_rope) c.flops += 3 * (n - exact) * d;
  return c;
}

// Part `h` of entry i: [head_dim].
const float* source(const LowRankFactor& a, std::int32_t row, std::int32_t h, std::int32_t i) {
  if (!a.is_pre_rope) return a.tokens.at(row + h, i);
  const KvRows& kv = a.tokens.kv;
  const std::int32_t token = a.tokens.index[a.tokens.first[row + h] + i];
  const std::int64_t position = kv.position[kv.slot(row + h, token)];
  return a.pre_rope[kv.sequence(row)] + (position * kv.kv_heads + (row + h) % kv.kv_heads) * kv.head_dim;
}

RowMatrix gather(const LowRankFactor& a, const LowRankShape& s) {
  const std::int64_t d = a.tokens.kv.head_dim;
  RowMatrix x(a.tokens.count(s.row), s.width);
  for (std::int32_t i = 0; i < x.rows(); ++i)
    for (std::int32_t h = 0; h * d < s.width; ++h) std::copy_n(source(a, s.row, h, i), d, x.row(i).data() + h * d);
  return x;
}

// Gram-Schmidt in order and twice; dependent columns become 0.
void orthonormalize(RowMatrix& m) {
  for (Eigen::Index c = 0; c < m.cols(); ++c) {
    const float before = m.col(c).norm();
    for (int pass = 0; pass < 2 && c > 0; ++pass) {
      const Eigen::VectorXf along = m.leftCols(c).transpose() * m.col(c);
      m.col(c) -= m.leftCols(c) * along;
    }
    const float length = m.col(c).norm();
    if (length > 1e-5F * before && length > 0.0F) {
      m.col(c) /= length;
    } else {
      m.col(c).setZero();
    }
  }
}

void store_halves(const RowMatrix& m, std::int64_t width, std::uint16_t* out) {
  for (Eigen::Index i = 0; i < m.rows(); ++i)
    for (Eigen::Index c = 0; c < m.cols(); ++c) out[i * width + c] = static_cast<std::uint16_t>(to_stored(StoredType::kFp16, m(i, c)));
}

RowMatrix load_halves(const std::uint16_t* in, Eigen::Index rows, Eigen::Index cols) {
  RowMatrix m(rows, cols);
  for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = half_to_float(in[i]);
  return m;
}

void factor(const LowRankFactor& a, const RowMatrix& x, std::uint16_t* left, std::uint16_t* right) {
  const Eigen::Index rank = std::min<Eigen::Index>({a.rank, x.rows(), x.cols()});
  RowMatrix r(x.cols(), rank);
  for (Eigen::Index i = 0; i < r.size(); ++i)
    r.data()[i] = static_cast<float>(Draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(i)}.normal());
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    RowMatrix q = x * r;
    orthonormalize(q);
    r.noalias() = x.transpose() * q;
    orthonormalize(r);
  }
  if (a.rounds == 0) orthonormalize(r);
  store_halves(x * r, a.rank, left);
  store_halves(r.transpose(), x.cols(), right);
}

// By the rotation from `before` to `after`.
void turn(const float* before, const float* after, std::int32_t d, float* y) {
  const std::int32_t half = d / 2;
  for (std::int32_t c = 0; c < half; ++c) {
    const double px = before[c], py = before[c + half], qx = after[c], qy = after[c + half];
    double cos = px * qx + py * qy, sin = px * qy - py * qx;
    const double length = std::hypot(cos, sin);
    cos = length > 0.0 ? cos / length : 1.0, sin = length > 0.0 ? sin / length : 0.0;
    const double low = y[c], high = y[c + half];
    y[c] = static_cast<float>(low * cos - high * sin);
    y[c + half] = static_cast<float>(low * sin + high * cos);
  }
}

// Also for entries that name tokens.
void check_lists(const LowRankFactor& a) {
  check_heads(a);
  for (std::int32_t r = 0; a.joint_heads && r < a.tokens.kv.num_rows; ++r)
    if (a.tokens.count(r) != a.tokens.count(r / a.tokens.kv.kv_heads * a.tokens.kv.kv_heads))
      throw InternalError("low_rank_factor: KV heads of a sequence list different numbers of tokens");
}

void factor_all(const LowRankFactor& a) {
  check_lists(a);
  std::fill_n(a.left, left_numbers(a), std::uint16_t{0});
  std::fill_n(a.right, right_numbers(a), std::uint16_t{0});
  for (const LowRankShape& s : low_rank_shapes(a)) {
    const RowMatrix x = gather(a, s);
    if (x.size() > 0) factor(a, x, a.left + s.left, a.right + s.right);
  }
}

void rebuild_all(const LowRankFactor& a) {
  const auto is_exact = [&](std::int32_t row, std::int32_t i) {
    if (a.exact_first == nullptr) return false;
    const std::int32_t token = a.tokens.index[a.tokens.first[row] + i];
    return std::binary_search(a.exact + a.exact_first[row], a.exact + a.exact_first[row + 1], token);
  };
  check_lists(a);
  const std::int32_t d = a.tokens.kv.head_dim;
  for (const LowRankShape& s : low_rank_shapes(a)) {
    const std::int32_t n = a.tokens.count(s.row);
    const RowMatrix x = load_halves(a.left + s.left, n, a.rank) * load_halves(a.right + s.right, a.rank, s.width);
    for (std::int32_t i = 0; i < n; ++i) {
      for (std::int32_t h = 0; h * std::int64_t{d} < s.width; ++h) {
        if (is_exact(s.row + h, i)) continue;
        float* const out = a.tokens.at(s.row + h, i);
        Eigen::RowVectorXf y = x.row(i).segment(static_cast<Eigen::Index>(h) * d, d);
        if (a.is_pre_rope) turn(source(a, s.row, h, i), out, d, y.data());
        std::copy_n(y.data(), d, out);
      }
    }
  }
}

}  // namespace

OpCall call(const LowRankFactor& a) {
  if (a.unpacks) return cost_to_unpack(a);
  const std::int64_t n = a.tokens.total(), products = 2 * a.rounds + 2;
  OpCall c{.op = "low_rank_factor", .rows = a.tokens.kv.num_rows, .tokens = n, .outputs = n};
  c.bytes = products * (a.tokens.dense_bytes() + a.tokens.list_bytes()) + 2 * (left_numbers(a) + right_numbers(a));
  for (const LowRankShape& s : low_rank_shapes(a))
    c.flops += products * 2 * s.entries * s.width * a.rank + (a.rounds + 1) * 2 * (s.entries + s.width) * a.rank * a.rank;
  return c;
}
KVLAB_WITHOUT_CUDA(LowRankFactor)

void stored_arrays(LowRankFactor& a, StoredArrays& arrays) {
  const std::int64_t rank = a.rank, d = a.tokens.kv.head_dim;
  arrays.rows(a.left, [=](std::int64_t entries) { return entries * rank; });
  arrays.rows(a.right, [=](std::int64_t) { return d * rank; });
}

void run_cpu(const LowRankFactor& a) { a.unpacks ? rebuild_all(a) : factor_all(a); }

}  // namespace kvlab
