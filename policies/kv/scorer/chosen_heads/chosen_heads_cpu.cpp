#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "kernels/lanes_cpu.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"

namespace kvlab {

namespace {

// [q_heads, n]; `row`: the sequence's first.
RowMatrix column_sums(const ChosenHeads& a, std::int32_t row) {
  RowMatrix sums = RowMatrix::Zero(static_cast<Eigen::Index>(a.kv.kv_heads) * a.kv.group, a.kv.len[row]);
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    const std::int32_t begin = h * a.kv.group, end = begin + a.kv.group;
    const bool wanted = a.heads == nullptr || std::any_of(a.heads, a.heads + a.num_heads, [&](auto x) { return x >= begin && x < end; });
    if (!wanted) continue;
    for_each_head_rows(a.kv, row + h, a.queries[a.kv.sequence(row)],
                       [&](const HeadRows& rows) { sums.row(rows.head) += rows.p.colwise().sum(); });
  }
  return sums;
}

std::vector<std::int32_t> find_heads(const ChosenHeads& a, const RowMatrix& sums) {
  const auto n = static_cast<std::int32_t>(sums.cols());
  const std::int32_t begin = std::min(a.sinks, n), end = std::max(begin, n - a.recent);
  const Eigen::VectorXf middle = sums.middleCols(begin, end - begin).rowwise().sum();
  std::vector<std::int32_t> order(static_cast<std::size_t>(sums.rows()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return middle[x] > middle[y]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(a.num_heads)));
  return order;
}

}  // namespace

void run_cpu(const ChosenHeads& a) {
  check_heads(a);
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int32_t row = s * a.kv.kv_heads, n = a.kv.len[row];
    const RowMatrix sums = column_sums(a, row);
    const std::vector<std::int32_t> heads =
        a.heads == nullptr ? find_heads(a, sums) : std::vector<std::int32_t>(a.heads, a.heads + a.num_heads);
    Eigen::RowVectorXf mean = Eigen::RowVectorXf::Zero(n);
    for (const std::int32_t h : heads) mean += sums.row(h) / static_cast<float>(heads.size());
    for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) std::copy_n(mean.data(), n, a.scores + a.kv.first[row + h]);
  }
}

}  // namespace kvlab
