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

namespace {

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

void run_cpu(const LowRankFactor& a) { a.unpacks ? rebuild_all(a) : factor_all(a); }

}  // namespace kvlab
