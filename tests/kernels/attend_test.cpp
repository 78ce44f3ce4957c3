#include "kernels/attend/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlab {
namespace {

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(2 * Draw{seed, Purpose::kTest, i}.uniform() - 1);
  return x;
}

// One KV head of a sequence, whose tokens lie at every second position: 0, 2, 4, ...
struct AttendRow {
  static constexpr std::int32_t kTokens = 50, kQueries = 7, kRowGroup = 3, kRowDim = 11;
  std::vector<float> k = noise(kTokens * kRowDim, 1), v = noise(kTokens * kRowDim, 2), q = noise(kQueries * kRowGroup * kRowDim, 3);
  std::vector<std::int32_t> position, page{0};
  std::int32_t len = kTokens, page_begin = 0;
  std::int64_t first[2] = {0, kTokens};

  AttendRow() {
    for (std::int32_t i = 0; i < kTokens; ++i) position.push_back(2 * i);
  }
  KvRows rows() {
    KvRows kv;
    kv.num_rows = kv.kv_heads = 1, kv.group = kRowGroup, kv.head_dim = kRowDim, kv.len = &len, kv.first = first;
    kv.page_begin = &page_begin, kv.page = page.data(), kv.page_tokens = kv.len[0], kv.pool_tokens = kTokens;
    kv.k = k.data(), kv.v = v.data(), kv.position = position.data();
    return kv;
  }
  // Channel `c` of what line `line` gets: a loop over the tokens in double.
  double expected(std::int32_t first_position, std::int32_t window, std::int32_t line, std::int32_t c) const {
    const std::int32_t query = first_position + line / kRowGroup;
    double weights = 0, sum = 0;
    for (std::int32_t i = 0; i < kTokens; ++i) {
      if (position[static_cast<std::size_t>(i)] > query) continue;
      if (window > 0 && position[static_cast<std::size_t>(i)] <= query - window) continue;
      double dot = 0;
      for (std::int32_t d = 0; d < kRowDim; ++d)
        dot += double{q[static_cast<std::size_t>(line * kRowDim + d)]} * k[static_cast<std::size_t>(i * kRowDim + d)];
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(kRowDim)));
      weights += weight;
      sum += weight * v[static_cast<std::size_t>(i * kRowDim + c)];
    }
    return weights == 0 ? 0 : sum / weights;
  }
};

// Windows of which a query at an odd position sees one token or, of length 1, none; of some, of all. Queries within the tokens and behind.
TEST(AttendCpu, SeesTheWindowsTokens) {
  AttendRow row;
  Segment all;
  all.kv = row.rows();
  for (const std::int32_t first_position : {0, 43, 92, 96, 110}) {
    for (const std::int32_t window : {0, 1, 2, 9, 50, 1000}) {
      const Queries queries{row.q.data(), AttendRow::kQueries, first_position};
      std::vector<float> out(row.q.size(), NAN);
      float* outs = out.data();
      Attend a{&all, 1, &queries, &outs};
      a.window = window;
      run_cpu(a);
      for (std::int32_t line = 0; line < AttendRow::kQueries * AttendRow::kRowGroup; ++line)
        for (std::int32_t c = 0; c < AttendRow::kRowDim; ++c)
          ASSERT_NEAR(out[static_cast<std::size_t>(line * AttendRow::kRowDim + c)], row.expected(first_position, window, line, c), 2e-6)
              << "from " << first_position << ", window " << window << ", line " << line;
    }
  }
}

}  // namespace
}  // namespace kvlab
