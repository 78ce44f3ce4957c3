#include <algorithm>
#include <cmath>

#include "kernels/lanes_cpu.h"
#include "policies/kv/scorer/key_redundancy/key_redundancy.h"

namespace kvlab {

namespace {

// [len, head_dim].
RowMatrix unit_keys(const KeyRedundancy& a, std::int32_t r) {
  const std::int64_t d = a.kv.head_dim;
  RowMatrix keys(a.kv.len[r], d);
  for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
    const float* key = a.kv.key(r, i);
    const float norm = std::sqrt(lane_dot(key, key, d)) + 1e-8F;
    std::transform(key, key + d, keys.row(i).data(), [norm](float x) { return x / norm; });
  }
  return keys;
}

void leave_out(float* line, Eigen::Index j, Eigen::Index n, float similar) {
  line[j] = 0.0F;
  Eigen::Index newest = n - 1;
  while (newest > 0 && !(line[newest] > similar)) --newest;
  line[newest] = 0.0F;
}

// [len] sums of the columns of C.
Eigen::VectorXd column_sums(const RowMatrix& keys, float similar) {
  constexpr Eigen::Index kLines = 64;
  const Eigen::Index n = keys.rows();
  Eigen::VectorXd sums = Eigen::VectorXd::Zero(n);
  RowMatrix lines;
  for (Eigen::Index begin = 0; begin < n; begin += kLines) {
    const Eigen::Index count = std::min(kLines, n - begin);
    lines.noalias() = keys.middleRows(begin, count) * keys.transpose();
    for (Eigen::Index j = 0; j < count; ++j) {
      leave_out(lines.row(j).data(), begin + j, n, similar);
      sums += lines.row(j).transpose().cast<double>();
    }
  }
  return sums;
}

}  // namespace

void run_cpu(const KeyRedundancy& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t n = a.kv.len[r];
    if (n == 0) continue;
    const Eigen::VectorXd mean = column_sums(unit_keys(a, r), a.similar) / n;
    const Eigen::VectorXd weight = (mean.array() - mean.maxCoeff()).exp();
    Eigen::Map<Eigen::VectorXf>(a.out + a.kv.first[r], n) = (weight / weight.sum()).cast<float>();
  }
}

}  // namespace kvlab
