#include "policies/kv/scorer/representatives/representatives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlab {

namespace {

using Bits = std::vector<std::uint8_t>;

// Indices of the `count` largest, ties to the lower.
std::vector<std::int32_t> best(const std::vector<float>& scores, std::int32_t count) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&scores](std::int32_t x, std::int32_t y) {
    const float score_x = scores[static_cast<std::size_t>(x)], score_y = scores[static_cast<std::size_t>(y)];
    return score_x != score_y ? score_x > score_y : x < y;
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(), better);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

Bits anchor_bits(const Representatives& a, const std::vector<Bits>& signature, std::int32_t sequence) {
  Bits anchor(static_cast<std::size_t>(a.kv.kv_heads), 0);
  for (std::size_t h = 0; h < anchor.size(); ++h) {
    std::size_t ones = 0;
    for (const Bits& bits : signature) ones += bits[h];
    switch (a.anchor) {
      case Representatives::Anchor::kMajority:
        anchor[h] = 2 * ones > signature.size() ? 1 : 0;
        break;
      case Representatives::Anchor::kZeros:
        break;
      case Representatives::Anchor::kOnes:
        anchor[h] = 1;
        break;
      case Representatives::Anchor::kAlternating:
        anchor[h] = h % 2;
        break;
      case Representatives::Anchor::kRandom:
        anchor[h] = Draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(sequence), h}.below(2) == 1 ? 1 : 0;
    }
  }
  return anchor;
}

std::vector<Bits> signatures(const Representatives& a, std::int32_t sequence, std::vector<float>& mean) {
  const std::int32_t row0 = sequence * a.kv.kv_heads, n = a.kv.len[row0];
  std::vector<Bits> bits(static_cast<std::size_t>(n), Bits(static_cast<std::size_t>(a.kv.kv_heads), 0));
  mean.assign(static_cast<std::size_t>(n), 0.0F);
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    const float* row = a.scores + a.kv.first[row0 + h];
    const std::vector<float> scores(row, row + n);
    for (const std::int32_t i : best(scores, a.important[sequence])) bits[static_cast<std::size_t>(i)][static_cast<std::size_t>(h)] = 1;
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += scores[i] / static_cast<float>(a.kv.kv_heads);
  }
  return bits;
}

std::size_t distance(const Bits& x, const Bits& y) {
  std::size_t differ = 0;
  for (std::size_t h = 0; h < x.size(); ++h) differ += x[h] != y[h] ? 1 : 0;
  return differ;
}

void run_sequence(const Representatives& a, std::int32_t sequence) {
  std::vector<float> mean;
  const std::vector<Bits> signature = signatures(a, sequence, mean);
  std::vector<float> rank(mean.size(), 0.0F);
  for (const std::int32_t i : best(mean, a.important[sequence])) rank[static_cast<std::size_t>(i)] = 2.0F;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < rank.size(); ++i)
    if (rank[i] == 0.0F) others.push_back(i);
  const Bits anchor = anchor_bits(a, signature, sequence);
  std::stable_sort(others.begin(), others.end(),
                   [&](std::size_t x, std::size_t y) { return distance(signature[x], anchor) < distance(signature[y], anchor); });
  const auto count = static_cast<std::size_t>(a.representatives[sequence]);
  for (std::size_t j = 0; j < count; ++j) rank[others[(2 * j + 1) * others.size() / (2 * count)]] = 1.0F;
  for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
    float* row = a.scores + a.kv.first[sequence * a.kv.kv_heads + h];
    for (std::size_t i = 0; i < rank.size(); ++i)
      if (!std::isinf(row[i])) row[i] = rank[i];
  }
}

}  // namespace

// Scores are read by the selections per head and of the mean, signatures of one bit per head are written and read.
OpCall call(const Representatives& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "representatives", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n + n / 4, .flops = 6 * n};
}
KVLAB_WITHOUT_CUDA(Representatives)

void run_cpu(const Representatives& a) {
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) run_sequence(a, s);
}

}  // namespace kvlab
