#include <gtest/gtest.h>

#include <deque>

#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// The rule by plain loops: every token keeps the last m probabilities of rows that read it.
class PlainAlisa {
 public:
  PlainAlisa(std::int32_t rows, std::int32_t m) : rings_(static_cast<std::size_t>(rows)), m_(m) {}

  void push(const Decode& d, std::int32_t row, const float* q, const std::vector<std::int32_t>& tokens) {
    std::vector<double> p(tokens.size(), 0.0);
    for (std::int32_t h = 0; h < d.model.group(); ++h) {
      std::vector<double> z;
      for (const std::int32_t i : tokens)
        z.push_back(std::exp(d.dot(q + h * d.model.head_dim, d.key(row, i)) / std::sqrt(d.model.head_dim)));
      const double sum = std::accumulate(z.begin(), z.end(), 0.0);
      for (std::size_t i = 0; i < z.size(); ++i) p[i] += z[i] / sum / d.model.group();
    }
    auto& ring = nth(rings_, row);
    ring.resize(std::max(ring.size(), static_cast<std::size_t>(tokens.back()) + 1));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      auto& values = nth(ring, tokens[i]);
      values.push_back(p[i]);
      if (std::ssize(values) > m_) values.pop_front();
    }
  }
  [[nodiscard]] std::vector<std::int32_t> select(std::int32_t row, std::int32_t n, std::int32_t budget) const {
    const std::int32_t tail = n - std::max(1, budget / 2);
    std::vector<double> sums;
    for (std::int32_t i = 0; i < tail; ++i) {
      const auto& values = nth(nth(rings_, row), i);
      sums.push_back(std::accumulate(values.begin(), values.end(), 0.0));
    }
    return tokens_of(best(sums, static_cast<std::size_t>(std::max(0, budget - (n - tail)))), 1, 0, tail, n);
  }

 private:
  std::vector<std::vector<std::deque<double>>> rings_;
  std::int32_t m_;
};

TEST(Alisa, NewestHalfAndWhatTheLastRowsFavoured) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    Decode d({4, 2 * group, 2, 8, 16}, 2, 60, 3, true, 4);
    auto part = make_part<SelectorRegistry>("alisa", "{budget_frac: 0.2, row_tokens: 3}");
    d.prefill(*part);
    PlainAlisa plain(4, 3);
    for (std::int32_t r = 0; r < 4; ++r)
      for (std::int32_t t = 57; t < 60; ++t)
        plain.push(d, r, d.query(r, 0) - static_cast<std::ptrdiff_t>(59 - t) * d.model.q_heads * 8, tokens_of({}, 1, t + 1, 0, 0));
    for (std::int32_t step = 0; step < 12; ++step) {
      const auto rows = d.decode(*part);
      for (std::int32_t r = 0; r < 4; ++r) {
        const auto& tokens = nth(rows, r);
        EXPECT_EQ(tokens, plain.select(r, d.tokens(), d.tokens() / 5)) << "group " << group << " step " << step;
        plain.push(d, r, d.query(r, 0), tokens);
      }
    }
  }
}

TEST(Alisa, KeepsTheContract) {
  EXPECT_TRUE(large_budget_selects_everything("alisa", "{}"));
  EXPECT_TRUE(same_log_with_recorded_counts("alisa", "{}", 65, 4));
  EXPECT_TRUE(same_log_with_recorded_counts("alisa", "{}", 1, 4));
  const auto run = [] {
    Decode d({4, 8, 2, 8, 16}, 1, 50, 3, true, 9);
    auto part = make_part<SelectorRegistry>("alisa");
    d.prefill(*part);
    d.decode(*part);
    return d.decode(*part);
  };
  EXPECT_EQ(run(), run());
  EXPECT_EQ(run()[0].back(), 51);
}

}  // namespace
}  // namespace kvlab::test
