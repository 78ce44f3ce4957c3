#include "kernels/attention/attend/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(2 * Draw{seed, Purpose::kTest, i}.uniform() - 1);
  return x;
}

// One KV head of a sequence, with tokens at every second position: 0, 2, 4, ...
struct AttendRow : PagedRows {
  std::int32_t tokens, queries, group, dim;
  std::vector<float> q;

  AttendRow(std::int32_t tokens_, std::int32_t queries_, std::int32_t group_, std::int32_t dim_, std::int32_t page_tokens)
      : PagedRows({tokens_}, dim_, page_tokens), tokens(tokens_), queries(queries_), group(group_), dim(dim_) {
    k = noise(k.size(), 1), v = noise(k.size(), 2), q = noise(static_cast<std::size_t>(lines() * dim), 3);
    kv.k = k.data(), kv.v = v.data(), kv.group = group;
    std::fill(position.begin(), position.end(), -1);
    for (std::int32_t i = 0; i < tokens; ++i) position[slot(i)] = 2 * i;
  }
  [[nodiscard]] std::int32_t lines() const { return queries * group; }
  [[nodiscard]] std::size_t slot(std::int32_t i) const { return static_cast<std::size_t>(kv.slot(0, i)); }
  // Output of a line with exponentials multiplied by these numbers, in double.
  [[nodiscard]] std::vector<double> weighed(std::int32_t line, const std::vector<double>& by) const {
    double weights = 0;
    std::vector<double> sum(static_cast<std::size_t>(dim), 0.0);
    for (std::int32_t i = 0; i < tokens; ++i) {
      double dot = 0;
      const float *const key = kv.key(0, i), *const value = kv.value(0, i);
      for (std::int32_t c = 0; c < dim; ++c) dot += double{q[static_cast<std::size_t>(line * dim + c)]} * key[c];
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim))) * by[static_cast<std::size_t>(i)];
      weights += weight;
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weight * value[c];
    }
    for (double& x : sum) x = weights == 0 ? 0 : x / weights;
    return sum;
  }
  // 1 for the tokens that the line sees.
  [[nodiscard]] std::vector<double> seen(std::int32_t first_position, std::int32_t window, std::int32_t line) const {
    const std::int32_t query = first_position + line / group;
    std::vector<double> by;
    for (std::int32_t i = 0; i < tokens; ++i) by.push_back(2 * i <= query && (window == 0 || 2 * i > query - window) ? 1 : 0);
    return by;
  }
  void check(std::int32_t first_position, std::int32_t window) {
    const Segment all{.kv = kv};
    const Queries asked{q.data(), queries, first_position};
    std::vector<float> out(q.size(), NAN);
    float* outs = out.data();
    run_cpu(Attend{.segments = &all, .num_segments = 1, .queries = &asked, .out = &outs, .window = window});
    for (std::int32_t line = 0; line < lines(); ++line) {
      const std::vector<double> sums = weighed(line, seen(first_position, window, line));
      for (std::int32_t c = 0; c < dim; ++c)
        ASSERT_NEAR(out[static_cast<std::size_t>(line * dim + c)], sums[static_cast<std::size_t>(c)], 2e-6)
            << tokens << " tokens of " << dim << " channels, group " << group << ", from " << first_position << ", window " << window
            << ", line " << line;
    }
  }
};

// Windows in which a query at an odd position sees one token or, of length 1, none; some tokens; all. Queries among the tokens and after.
TEST(AttendCpu, SeesTheWindowsTokens) {
  AttendRow row(50, 7, 3, 11, 50);
  for (const std::int32_t first_position : {0, 43, 92, 96, 110})
    for (const std::int32_t window : {0, 1, 2, 9, 50, 1000}) row.check(first_position, window);
}

// Lines, tokens and channels that fill tiles, fall short of them and go beyond, in pages of several tokens and of one.
TEST(AttendCpu, TilesAreTheSumsWhateverTheShape) {
  for (const std::int32_t group : {1, 2, 3, 4, 6, 8})
    for (const std::int32_t dim : {8, 16, 64, 80, 128})
      for (const std::int32_t tokens : {1, 15, 16, 17, 47, 100})
        for (const std::int32_t queries : {1, 3}) AttendRow(tokens, queries, group, dim, tokens % 2 == 0 ? 16 : 1).check(2 * tokens - 1, 0);
}

// A weight for each token and query head multiplies the token's exponential; -infinity hides it from that head. Twice: a list that leaves
// out every third token, then whole rows.
TEST(AttendCpu, WeighsTokensForEachHead) {
  AttendRow row(37, 1, 3, 16, 8);
  std::vector<std::int32_t> listed, all(37);
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t i = 0; i < 37; ++i)
    if (i % 3 != 1) listed.push_back(i);
  for (const std::vector<std::int32_t>& tokens : {listed, all}) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    std::vector<float> weight = noise(static_cast<std::size_t>(3 * n), 9);
    for (std::size_t i = 0; i < weight.size(); i += 5) weight[i] = -INFINITY;
    const std::int64_t first[2] = {0, n};
    Segment segment;
    segment.kv = row.kv, segment.token_log_weight = weight.data(), segment.weighs_tokens = true;
    if (n < 37) segment.index_first = first, segment.index = tokens.data();
    const Queries asked{row.q.data(), 1, 80};
    std::vector<float> out(row.q.size()), plain(row.q.size());
    float *outs = out.data(), *plains = plain.data();
    run_cpu(Attend{&segment, 1, &asked, &outs});
    EXPECT_EQ(call(Attend{&segment, 1, &asked, &outs}).bytes, (2 * n * 16 * 2) + (n < 37 ? 4 * n : 0) + 4 * n * 3 + 2 * 3 * 16 * 2);
    for (std::size_t head = 0; head < 3; ++head) {
      std::vector<double> by(37, 0.0);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        by[static_cast<std::size_t>(tokens[i])] = std::exp(static_cast<double>(weight[i * 3 + head]));
      const std::vector<double> expected = row.weighed(static_cast<std::int32_t>(head), by);
      for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[head * 16 + c], expected[c], 2e-6);
    }
    segment.token_log_weight = nullptr;
    run_cpu(Attend{&segment, 1, &asked, &plains});
    EXPECT_NE(out, plain);
  }
}

// The same for each of several queries, in a segment beside one without weights; every query sees all tokens.
TEST(AttendCpu, WeighsTokensForEachQuery) {
  AttendRow row(21, 3, 2, 16, 8);
  std::vector<float> weight = noise(21 * 3 * 2, 9);
  for (std::size_t i = 0; i < weight.size(); i += 5) weight[i] = -INFINITY;
  Segment segments[2];
  segments[0].kv = segments[1].kv = row.kv;
  segments[1].token_log_weight = weight.data(), segments[1].weighs_tokens = true, segments[1].weighed_queries = 3;
  const Queries asked{row.q.data(), 3, 80};
  std::vector<float> out(row.q.size());
  float* outs = out.data();
  const Attend op{segments, 2, &asked, &outs};
  run_cpu(op);
  EXPECT_EQ(call(op).bytes, 2 * (2 * 21 * 16 * 2) + 4 * 21 * 3 * 2 + 2 * 3 * 2 * 16 * 2);
  for (std::size_t line = 0; line < 6; ++line) {
    std::vector<double> by;
    for (std::size_t i = 0; i < 21; ++i) by.push_back(1 + std::exp(static_cast<double>(weight[(line / 2 * 21 + i) * 2 + line % 2])));
    const std::vector<double> expected = row.weighed(static_cast<std::int32_t>(line), by);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[line * 16 + c], expected[c], 2e-6);
  }
}

}  // namespace
}  // namespace kvlab
