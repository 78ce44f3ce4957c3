#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace kvlab {
namespace {

Draw draw(std::uint64_t request) { return {17, Purpose::kTest, request, 0, 0}; }

TEST(Draw, EveryCoordinateCounts) {
  const std::vector<Draw> all{{1, Purpose::kArrival, 2, 3, 4}, {2, Purpose::kArrival, 2, 3, 4}, {1, Purpose::kRouter, 2, 3, 4},
                              {1, Purpose::kArrival, 3, 3, 4}, {1, Purpose::kArrival, 2, 4, 4}, {1, Purpose::kArrival, 2, 3, 5},
                              {1, Purpose::kArrival, 3, 2, 4}, {1, Purpose::kArrival, 2, 4, 3}};
  std::set<std::uint64_t> bits;
  for (const Draw& d : all) bits.insert(d.bits());
  EXPECT_EQ(bits.size(), all.size());
}

// A draw is a function of its coordinates: what was drawn before, how often and in which order changes nothing.
TEST(Draw, OrderChangesNothing) {
  const auto all_of = [](const Draw& d) {
    return std::vector<double>{d.uniform(),   d.exponential(2), d.normal(),       d.gamma(0.5, 1),
                               d.gamma(3, 1), d.weibull(2, 1),  d.lognormal(0, 1)};
  };
  std::vector<std::vector<double>> forward, backward;
  for (std::uint64_t i = 0; i < 100; ++i) forward.push_back(all_of(draw(i)));
  for (std::uint64_t i = 100; i-- > 0;) {
    (void)draw(i + 1000).gamma(0.1, 1);
    backward.push_back(all_of(draw(i)));
  }
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
}

constexpr int kDraws = 200'000;

// Mean and variance of kDraws samples are within 4 standard errors of their theoretical values.
template <class Sample>
void expect_moments(double mean, double variance, Sample sample) {
  std::vector<double> x;
  for (std::uint64_t i = 0; i < kDraws; ++i) x.push_back(sample(draw(i)));
  double sum = 0, second = 0, fourth = 0;
  for (const double v : x) sum += v;
  for (const double v : x) {
    const double d = (v - mean) * (v - mean);
    second += d / kDraws;
    fourth += d * d / kDraws;
  }
  EXPECT_NEAR(sum / kDraws, mean, 4 * std::sqrt(variance / kDraws));
  EXPECT_NEAR(second, variance, 4 * std::sqrt((fourth - second * second) / kDraws));
}

// The share of draws that give each number from 0 is within 4 standard errors of its probability.
template <class Number>
void expect_shares(const std::vector<double>& probabilities, Number number) {
  std::vector<int> counts(probabilities.size(), 0);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const std::size_t k = number(draw(i));
    ASSERT_LT(k, counts.size());
    ++counts[k];
  }
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const double p = probabilities[k];
    EXPECT_NEAR(counts[k] / double{kDraws}, p, 4 * std::sqrt(p * (1 - p) / kDraws) + 1e-12) << k << " of " << counts.size();
  }
}

TEST(Draw, DistributionsHaveTheirMoments) {
  expect_moments(0.5, 1.0 / 12, [](const Draw& d) {
    const double u = d.uniform();
    EXPECT_TRUE(u >= 0 && u < 1);
    return u;
  });
  expect_moments(3, 9, [](const Draw& d) { return d.exponential(3); });
  const double mu = 0.5, sigma = 0.4, s2 = sigma * sigma;
  expect_moments(std::exp(mu + s2 / 2), std::expm1(s2) * std::exp(2 * mu + s2), [&](const Draw& d) { return d.lognormal(mu, sigma); });
  expect_moments(0, 1, [](const Draw& d) { return d.normal(); });
  // One deviation holds 68.27 %.
  expect_shares({0.3173105, 0.6826895}, [](const Draw& d) { return std::abs(d.normal()) < 1 ? 1U : 0U; });
  for (const double shape : {0.2, 0.5, 1.0, 1.5, 9.0}) {
    SCOPED_TRACE(shape);
    expect_moments(shape * 2, shape * 4, [&](const Draw& d) { return d.gamma(shape, 2); });
  }
  for (const double shape : {0.7, 1.0, 2.5}) {
    SCOPED_TRACE(shape);
    const double first = std::tgamma(1 + 1 / shape), second = std::tgamma(1 + 2 / shape);
    expect_moments(2 * first, 4 * (second - first * first), [&](const Draw& d) { return d.weibull(shape, 2); });
  }
}

TEST(Draw, BelowIsUniform) {
  for (const std::uint64_t n : {1U, 2U, 7U, 10U})
    expect_shares(std::vector<double>(n, 1.0 / static_cast<double>(n)), [&](const Draw& d) { return d.below(n); });
  expect_shares({1.0 / 3, 2.0 / 3}, [](const Draw& d) {
    const std::uint64_t large = 3ULL << 62, k = d.below(large);  // not a power of two, beyond 2^63
    EXPECT_LT(k, large);
    return k < large / 3 ? 0U : 1U;
  });
}

TEST(Zipf, Frequencies) {
  for (const double s : {0.0, 0.5, 1.0, 1.2, 3.0}) {
    SCOPED_TRACE(s);
    std::vector<double> shares;
    for (int k = 1; k <= 10; ++k) shares.push_back(std::pow(k, -s));
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= total;
    const Zipf zipf(shares.size(), s);
    expect_shares(shares, [&](const Draw& d) { return zipf(d) - 1; });
  }
}

TEST(Zipf, OneItemAndManyItems) {
  const Zipf one(1, 1.1);
  const Zipf many(1'000'000'000'000ULL, 0.9);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(one(draw(i)), 1U);
    const std::uint64_t k = many(draw(i));
    EXPECT_TRUE(k >= 1 && k <= 1'000'000'000'000ULL);
  }
}

TEST(NormalStream, MomentsAndTails) {
  constexpr std::size_t kCount = 1 << 20;
  std::vector<float> x(kCount);
  NormalStream({7, Purpose::kTest, 1}).fill(0, x);
  double mean = 0, square = 0, fourth = 0, product = 0;
  std::size_t beyond_one = 0, beyond_three = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double v = x[i];
    mean += v / kCount;
    square += v * v / kCount;
    fourth += v * v * v * v / kCount;
    if (i > 0) product += v * x[i - 1] / kCount;
    beyond_one += std::fabs(v) > 1 ? 1 : 0;
    beyond_three += std::fabs(v) > 3 ? 1 : 0;
  }
  EXPECT_NEAR(mean, 0, 4e-3);  // four standard errors each
  EXPECT_NEAR(square, 1, 7e-3);
  EXPECT_NEAR(fourth, 3, 5e-2);
  EXPECT_NEAR(product, 0, 4e-3);
  EXPECT_NEAR(static_cast<double>(beyond_one) / kCount, 0.3173, 2e-3);
  EXPECT_NEAR(static_cast<double>(beyond_three) / kCount, 0.0027, 3e-4);
}

TEST(NormalStream, ANumberDependsOnItsPlaceAlone) {
  const NormalStream stream({7, Purpose::kTest, 1});
  std::vector<float> whole(64), part(13);
  stream.fill(0, whole);
  stream.fill(8, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 8));
  std::vector<float> other(64);
  NormalStream({7, Purpose::kTest, 2}).fill(0, other);
  EXPECT_NE(whole, other);
  stream.fill(0, std::span<float>());
}

}  // namespace
}  // namespace kvlab
