#include "policies/kv/scorer/lag_scores/lag_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kvlab {

namespace {

struct Partition {
  const LagScores& a;
  std::int32_t row, begin;
  std::vector<float> low, high;
  std::vector<double> spread;  // [lag] standard deviation, then softmax
};

void find_range(Partition& p, const float* data) {
  const auto d = static_cast<std::size_t>(p.a.kv.head_dim);
  p.low.assign(d, std::numeric_limits<float>::infinity());
  p.high.assign(d, -std::numeric_limits<float>::infinity());
  for (std::int32_t i = p.begin + p.a.lag; i < p.begin + 2 * p.a.lag; ++i) {
    const float* x = data + p.a.kv.slot(p.row, i) * p.a.kv.head_dim;
    for (std::size_t c = 0; c < d; ++c) p.low[c] = std::min(p.low[c], x[c]), p.high[c] = std::max(p.high[c], x[c]);
  }
}

double deviation(const Partition& p, const float* x) {
  const auto d = static_cast<std::size_t>(p.a.kv.head_dim);
  double sum = 0, squares = 0;
  const auto relative = [&](std::size_t c) { return static_cast<double>((x[c] - p.low[c]) / (p.high[c] - p.low[c] + p.a.epsilon)); };
  for (std::size_t c = 0; c < d; ++c) sum += relative(c);
  const double mean = sum / static_cast<double>(d);
  for (std::size_t c = 0; c < d; ++c) squares += (relative(c) - mean) * (relative(c) - mean);
  return d > 1 ? std::sqrt(squares / static_cast<double>(d - 1)) : 0;
}

void add_softmax(Partition& p, const float* data) {
  find_range(p, data);
  p.spread.resize(static_cast<std::size_t>(p.a.lag));
  for (std::int32_t i = 0; i < p.a.lag; ++i)
    p.spread[static_cast<std::size_t>(i)] = deviation(p, data + p.a.kv.slot(p.row, p.begin + i) * p.a.kv.head_dim);
  const double top = *std::max_element(p.spread.begin(), p.spread.end());
  double sum = 0;
  for (double& x : p.spread) x = std::exp(x - top), sum += x;
  float* scores = p.a.scores + p.a.kv.first[p.row] + p.begin;
  for (std::size_t i = 0; i < p.spread.size(); ++i) scores[i] += static_cast<float>(p.spread[i] / sum / 2);
}

void turn_into_ranks(Partition& p) {
  float* scores = p.a.scores + p.a.kv.first[p.row] + p.begin;
  std::vector<std::int32_t> order(static_cast<std::size_t>(p.a.lag));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [scores](std::int32_t x, std::int32_t y) { return scores[x] < scores[y]; });
  for (std::size_t rank = 0; rank < order.size(); ++rank) scores[order[rank]] = static_cast<float>(rank) / static_cast<float>(p.a.lag);
}

}  // namespace

// K and V of each partition are read as reference and as scored tokens, from memory once; about eight operations per channel.
OpCall call(const LagScores& a) {
  OpCall c{.op = "lag_scores", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int64_t scored = static_cast<std::int64_t>(a.partitions[r]) * a.lag, read = scored == 0 ? 0 : scored + a.lag;
    c.tokens += read;
    c.outputs += scored;
    c.bytes += 2 * read * a.kv.head_dim * a.kv.kv_bytes + 4 * scored;
    c.flops += 2 * (2 * read + 6 * scored) * a.kv.head_dim;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(LagScores)

void run_cpu(const LagScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    for (std::int32_t i = 0; i < a.partitions[r]; ++i) {
      Partition p{a, r, a.begin[r] + i * a.lag, {}, {}, {}};
      std::fill_n(a.scores + a.kv.first[r] + p.begin, a.lag, 0.0F);
      add_softmax(p, a.kv.k);
      add_softmax(p, a.kv.v);
      if (a.ranks) turn_into_ranks(p);
    }
  }
}

}  // namespace kvlab
