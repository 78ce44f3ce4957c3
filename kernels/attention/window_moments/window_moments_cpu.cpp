#include "kernels/attention/window_moments/window_moments.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

using Doubles = Eigen::ArrayXd;

// Over the queries of one query head.
struct HeadSums {
  Doubles p, p_sq;
  double entropy = 0;
};

void add_block(const HeadRows& rows, std::int32_t before, bool wants_entropy, HeadSums& sums) {
  for (std::int32_t t = 0; t < rows.count; ++t) {
    const auto line = rows.p.row(t).head(before).transpose().array().cast<double>();
    sums.p += line;
    sums.p_sq += line.square();
    if (!wants_entropy) continue;
    for (std::int32_t i = 0; i < before; ++i)
      if (rows.p(t, i) > 0.0F) sums.entropy -= static_cast<double>(rows.p(t, i)) * std::log(static_cast<double>(rows.p(t, i)));
  }
}

void finish_head(const WindowMoments& a, std::int32_t row, std::int32_t w, const HeadSums& sums) {
  const auto before = static_cast<std::int32_t>(sums.p.size());
  const Doubles mean = sums.p / w;
  Doubles var = Doubles::Zero(before);
  if (w > 1) var = ((sums.p_sq - sums.p * mean) / (w - 1)).max(0.0);
  if (a.wants_scores) {
    float* scores = a.scores + a.kv.first[row];
    for (std::int32_t i = 0; i < before; ++i) scores[i] += static_cast<float>((mean[i] + a.gamma * var[i]) / a.kv.group);
  }
  if (a.wants_spread) {
    a.entropy[a.kv.sequence(row)] += static_cast<float>(sums.entropy);
    a.variance[a.kv.sequence(row)] += static_cast<float>(var.sum());
  }
}

void run_row(const WindowMoments& a, std::int32_t row) {
  const Queries& q = a.queries[a.kv.sequence(row)];
  std::int32_t before = 0;
  while (before < a.kv.len[row] && a.kv.position[a.kv.slot(row, before)] < q.first_position) ++before;
  if (a.wants_scores) std::fill_n(a.scores + a.kv.first[row], a.kv.len[row], 0.0F);
  HeadSums sums;
  std::int32_t done = 0;  // queries of the head
  for_each_head_rows(a.kv, row, q, [&](const HeadRows& rows) {
    if (done == 0) sums = {Doubles::Zero(before), Doubles::Zero(before), 0.0};
    add_block(rows, before, a.wants_spread, sums);
    done += rows.count;
    if (done < q.count) return;
    finish_head(a, row, q.count, sums);
    done = 0;
  });
}

}  // namespace

void run_cpu(const WindowMoments& a) {
  if (a.wants_spread) {
    std::fill_n(a.entropy, a.kv.num_sequences(), 0.0F);
    std::fill_n(a.variance, a.kv.num_sequences(), 0.0F);
  }
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) run_row(a, r);
}

}  // namespace kvlab
