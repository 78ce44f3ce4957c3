#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/lanes_cpu.h"
#include "policies/kv/selector/key_codes/key_codes.h"

namespace kvlab {

namespace {

using MatrixMap = Eigen::Map<RowMatrix>;
using ConstMap = Eigen::Map<const RowMatrix>;

// out = x turned by `steps` positions.
void turn(const float* x, std::int32_t d, const float* frequencies, std::int32_t steps, float* out) {
  const std::int32_t half = d / 2;
  if (frequencies == nullptr) {
    std::copy_n(x, d, out);
    return;
  }
  for (std::int32_t c = 0; c < half; ++c) {
    const double angle = steps * double{frequencies[c]};
    const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    const float a = x[c], b = x[c + half];
    out[c] = a * cosine - b * sine;
    out[c + half] = b * cosine + a * sine;
  }
}

const float* of_sequence(const float* frequencies, std::int32_t sequence, std::int32_t d) {
  return frequencies == nullptr ? nullptr : frequencies + static_cast<std::ptrdiff_t>(sequence) * (d / 2);
}

// Keys of tokens [from, to) before RoPE.
RowMatrix keys_before_rope(const KeyCodes& a, std::int32_t row, std::int32_t from, std::int32_t to) {
  const KvRows& kv = a.kv;
  const float* const own = of_sequence(a.frequencies, kv.sequence(row), kv.head_dim);
  RowMatrix keys(std::max(0, to - from), kv.head_dim);
  for (std::int32_t i = from; i < to; ++i)
    turn(kv.key(row, i), kv.head_dim, own, -kv.position[kv.slot(row, i)], keys.data() + static_cast<std::int64_t>(i - from) * kv.head_dim);
  return keys;
}

RowMatrix root_of(const float* gram, std::int32_t d) {
  Eigen::MatrixXd h = ConstMap(gram, d, d).cast<double>();
  const double size = std::sqrt(h.squaredNorm() / (static_cast<double>(d) * d));
  if (size > 0) h /= size;
  h.diagonal().array() += 1e-6;
  return Eigen::MatrixXd(h.llt().matrixL()).cast<float>();
}

// Per line of y; squared distances less |y|^2.
void nearest(const RowMatrix& y, const RowMatrix& centers, std::vector<std::int32_t>& which) {
  which.resize(static_cast<std::size_t>(y.rows()));
  const Eigen::VectorXf half_norms = 0.5F * centers.rowwise().squaredNorm();
  const RowMatrix products = y * centers.transpose();
  for (Eigen::Index i = 0; i < y.rows(); ++i) {
    Eigen::Index best = 0;
    for (Eigen::Index c = 1; c < centers.rows(); ++c)
      if (products(i, c) - half_norms(c) > products(i, best) - half_norms(best)) best = c;
    which[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(best);
  }
}

// With probability proportional to the squared distance to earlier ones.
std::vector<Eigen::Index> first_centers(const RowMatrix& y, std::int32_t count, std::uint64_t seed) {
  const auto draw = [&](std::int32_t i) { return Draw{seed, Purpose::kPolicy, static_cast<std::uint64_t>(i)}; };
  std::vector<Eigen::Index> chosen{static_cast<Eigen::Index>(draw(0).below(static_cast<std::uint64_t>(y.rows())))};
  Eigen::VectorXd distance = (y.rowwise() - y.row(chosen[0])).rowwise().squaredNorm().cast<double>();
  for (std::int32_t i = 1; i < count; ++i) {
    double left = draw(i).uniform() * distance.sum();
    Eigen::Index at = 0;
    while (at + 1 < y.rows() && (distance(at) == 0 || left >= distance(at))) left -= distance(at++);
    chosen.push_back(at);
    distance = distance.cwiseMin((y.rowwise() - y.row(at)).rowwise().squaredNorm().cast<double>());
  }
  return chosen;
}

void train_row(const KeyCodes& a, std::int32_t row) {
  const std::int32_t d = a.kv.head_dim, codes = a.codes[row];
  const RowMatrix root = root_of(a.gram[row], d);
  MatrixMap(a.root[row], d, d) = root;
  const RowMatrix keys = keys_before_rope(a, row, 0, a.kv.len[row]), y = keys * root;
  RowMatrix centers(codes, d);
  MatrixMap out(a.centers[row], codes, d);
  const std::vector<Eigen::Index> seeds = first_centers(y, codes, static_cast<std::uint64_t>(a.seeds[row]));
  for (std::int32_t c = 0; c < codes; ++c) out.row(c) = keys.row(seeds[static_cast<std::size_t>(c)]);
  std::vector<std::int32_t> which;
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    centers.noalias() = out * root;
    nearest(y, centers, which);
    RowMatrix sums = RowMatrix::Zero(codes, d);
    std::vector<std::int32_t> members(static_cast<std::size_t>(codes), 0);
    for (std::size_t i = 0; i < which.size(); ++i) {
      sums.row(which[i]) += keys.row(static_cast<Eigen::Index>(i));  // the mean of keys maps to the mean of y
      ++members[static_cast<std::size_t>(which[i])];
    }
    for (std::int32_t c = 0; c < codes; ++c)
      if (members[static_cast<std::size_t>(c)] > 0) out.row(c) = sums.row(c) / static_cast<float>(members[static_cast<std::size_t>(c)]);
  }
}

void assign_row(const KeyCodes& a, std::int32_t row) {
  if (a.to[row] <= a.from[row]) return;
  const std::int32_t d = a.kv.head_dim;
  const ConstMap root(a.root[row], d, d), centers(a.centers[row], a.codes[row], d);
  std::vector<std::int32_t> which;
  nearest(keys_before_rope(a, row, a.from[row], a.to[row]) * root, centers * root, which);
  std::copy(which.begin(), which.end(), a.code[row] + a.from[row]);
}

}  // namespace

void run_cpu(const KeyCodes& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    if (a.codes[row] > 0) (a.kind == KeyCodes::Kind::kTrain ? train_row : assign_row)(a, static_cast<std::int32_t>(row));
  });
}

}  // namespace kvlab
