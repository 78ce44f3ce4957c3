#include "kernels/attention/attend/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/ceil_div.h"
#include "base/random.h"

namespace kvlab {
namespace {

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(2 * Draw{seed, Purpose::kTest, i}.uniform() - 1);
  return x;
}

// One KV head of a sequence, with tokens at every second position: 0, 2, 4, ...; its pages are in falling order in the pool.
struct AttendRow {
  std::int32_t tokens, queries, group, dim, page_tokens;
  std::vector<float> k, v, q;
  std::vector<std::int32_t> position, page;
  std::int32_t len = tokens, page_begin = 0;
  std::int64_t first[2] = {0, tokens};

  AttendRow(std::int32_t tokens_, std::int32_t queries_, std::int32_t group_, std::int32_t dim_, std::int32_t page_tokens_)
      : tokens(tokens_), queries(queries_), group(group_), dim(dim_), page_tokens(page_tokens_) {
    const std::int32_t pages = ceil_div(tokens, page_tokens);
    for (std::int32_t i = 0; i < pages; ++i) page.push_back(pages - 1 - i);
    k = noise(static_cast<std::size_t>(pages * page_tokens * dim), 1), v = noise(k.size(), 2);
    q = noise(static_cast<std::size_t>(lines() * dim), 3);
    position.resize(static_cast<std::size_t>(pages * page_tokens), -1);
    for (std::int32_t i = 0; i < tokens; ++i) position[slot(i)] = 2 * i;
  }
  [[nodiscard]] std::int32_t lines() const { return queries * group; }
  [[nodiscard]] std::size_t slot(std::int32_t i) const {
    return static_cast<std::size_t>(page[static_cast<std::size_t>(i / page_tokens)] * page_tokens + i % page_tokens);
  }
  [[nodiscard]] KvRows rows() {
    KvRows kv;
    kv.num_rows = kv.kv_heads = 1, kv.group = group, kv.head_dim = dim, kv.len = &len, kv.first = first;
    kv.page_begin = &page_begin, kv.page = page.data(), kv.page_tokens = page_tokens;
    kv.pool_tokens = static_cast<std::int64_t>(position.size());
    kv.k = k.data(), kv.v = v.data(), kv.position = position.data();
    return kv;
  }
  // Expected output of line `line`: a loop over the tokens in double.
  [[nodiscard]] std::vector<double> expected(std::int32_t first_position, std::int32_t window, std::int32_t line) const {
    const std::int32_t query = first_position + line / group;
    double weights = 0;
    std::vector<double> sum(static_cast<std::size_t>(dim), 0.0);
    for (std::int32_t i = 0; i < tokens; ++i) {
      if (2 * i > query || (window > 0 && 2 * i <= query - window)) continue;
      double dot = 0;
      const std::size_t at = slot(i) * static_cast<std::size_t>(dim);
      for (std::int32_t c = 0; c < dim; ++c)
        dot += double{q[static_cast<std::size_t>(line * dim + c)]} * k[at + static_cast<std::size_t>(c)];
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      weights += weight;
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weight * v[at + c];
    }
    for (double& x : sum) x = weights == 0 ? 0 : x / weights;
    return sum;
  }
  void check(std::int32_t first_position, std::int32_t window) {
    Segment all;
    all.kv = rows();
    const Queries asked{q.data(), queries, first_position};
    std::vector<float> out(q.size(), NAN);
    float* outs = out.data();
    Attend a{&all, 1, &asked, &outs};
    a.window = window;
    run_cpu(a);
    for (std::int32_t line = 0; line < lines(); ++line) {
      const std::vector<double> sums = expected(first_position, window, line);
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
    segment.kv = row.rows(), segment.token_log_weight = weight.data(), segment.weighs_tokens = true;
    if (n < 37) segment.index_first = first, segment.index = tokens.data();
    const Queries asked{row.q.data(), 1, 80};
    std::vector<float> out(row.q.size()), plain(row.q.size());
    float *outs = out.data(), *plains = plain.data();
    run_cpu(Attend{&segment, 1, &asked, &outs});
    EXPECT_EQ(call(Attend{&segment, 1, &asked, &outs}).bytes, (2 * n * 16 * 2) + (n < 37 ? 4 * n : 0) + 4 * n * 3 + 2 * 3 * 16 * 2);
    for (std::size_t head = 0; head < 3; ++head) {
      double weights = 0;
      std::vector<double> sum(16, 0.0);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::size_t at = row.slot(tokens[i]) * 16;
        double dot = 0;
        for (std::size_t c = 0; c < 16; ++c) dot += double{row.q[head * 16 + c]} * row.k[at + c];
        const double w = std::exp(dot / 4 + static_cast<double>(weight[i * 3 + head]));
        weights += w;
        for (std::size_t c = 0; c < 16; ++c) sum[c] += w * row.v[at + c];
      }
      for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[head * 16 + c], sum[c] / weights, 2e-6);
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
  segments[0].kv = segments[1].kv = row.rows();
  segments[1].token_log_weight = weight.data(), segments[1].weighs_tokens = true, segments[1].weighed_queries = 3;
  const Queries asked{row.q.data(), 3, 80};
  std::vector<float> out(row.q.size());
  float* outs = out.data();
  const Attend op{segments, 2, &asked, &outs};
  run_cpu(op);
  EXPECT_EQ(call(op).bytes, 2 * (2 * 21 * 16 * 2) + 4 * 21 * 3 * 2 + 2 * 3 * 2 * 16 * 2);
  for (std::size_t line = 0; line < 6; ++line) {
    double sum_of_weights = 0;
    std::vector<double> sum(16, 0.0);
    for (std::int32_t i = 0; i < 21; ++i) {
      const std::size_t at = row.slot(i) * 16;
      double dot = 0;
      for (std::size_t c = 0; c < 16; ++c) dot += double{row.q[line * 16 + c]} * row.k[at + c];
      const double w =
          std::exp(dot / 4) * (1 + std::exp(static_cast<double>(weight[(line / 2 * 21 + static_cast<std::size_t>(i)) * 2 + line % 2])));
      sum_of_weights += w;
      for (std::size_t c = 0; c < 16; ++c) sum[c] += w * row.v[at + c];
    }
    for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[line * 16 + c], sum[c] / sum_of_weights, 2e-6);
  }
}

}  // namespace
}  // namespace kvlab
