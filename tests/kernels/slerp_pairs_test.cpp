#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "policies/kv/disposal/slerp_pairs_op.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

using Vectors = std::vector<std::vector<float>>;

// Two one-head layers with these keys, merged.
struct Pair {
  Pair(const Vectors& x, const Vectors& y, float t, std::int32_t retain)
      : model{2, 1, 1, static_cast<std::int32_t>(x.front().size()), 4}, a(model, 1, 0, true), b(model, 1, 0, true) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      a.append(0, x[i].data(), x[i].data(), 1, static_cast<std::int32_t>(i));
      b.append(0, y[i].data(), y[i].data(), 1, static_cast<std::int32_t>(i));
    }
    const std::int32_t begin = 0, end = static_cast<std::int32_t>(x.size());
    run_cpu(SlerpPairs{a.rows(), b.rows(), &begin, &end, &retain, false, t});
  }
  std::vector<float> first(std::int32_t i) { return copy(a.rows().key(0, i)); }
  std::vector<float> second(std::int32_t i) { return copy(b.rows().key(0, i)); }
  std::vector<float> copy(const float* x) const { return {x, x + model.head_dim}; }
  ModelShape model;
  KvStore a, b;
};

TEST(SlerpPairs, TurnsBothToTheSameDirectionAndKeepsTheirLengths) {
  Pair p({{2, 0}}, {{0, 3}}, 0.6F, 0);  // 90 degrees: the direction is at 54
  const double angle = 0.6 * std::acos(0.0);
  EXPECT_NEAR(p.first(0)[0], 2 * std::cos(angle), 1e-6);
  EXPECT_NEAR(p.first(0)[1], 2 * std::sin(angle), 1e-6);
  EXPECT_NEAR(p.second(0)[0], 3 * std::cos(angle), 1e-6);
  EXPECT_NEAR(p.second(0)[1], 3 * std::sin(angle), 1e-6);
}

TEST(SlerpPairs, EqualDirectionsStay) {
  Pair p({{1, 2, 2}}, {{2, 4, 4}}, 0.6F, 0);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(p.first(0)[c], c == 0 ? 1 : 2, 1e-6);
    EXPECT_NEAR(p.second(0)[c], c == 0 ? 2 : 4, 1e-6);
  }
}

// Sine 0 at both ends: the plain mixture, and the direction with the larger share.
TEST(SlerpPairs, OppositeAndMissingDirections) {
  Pair opposite({{1, 0}}, {{-2, 0}}, 0.6F, 0);
  EXPECT_EQ(opposite.first(0), (std::vector<float>{-1, 0}));
  EXPECT_EQ(opposite.second(0), (std::vector<float>{-2, 0}));
  Pair zero({{0, 0}, {3, 4}}, {{5, 0}, {0, 0}}, 0.6F, 0);
  EXPECT_EQ(zero.first(0), (std::vector<float>{0, 0}));
  EXPECT_EQ(zero.second(0), (std::vector<float>{5, 0}));
  EXPECT_EQ(zero.first(1), (std::vector<float>{3, 4}));
  const float huge = std::numeric_limits<float>::infinity();
  Pair bad({{huge, 1}, {1, 0}}, {{1, 1}, {1, 0}}, 0.6F, 0);
  EXPECT_EQ(bad.second(0), (std::vector<float>{1, 1}));
  EXPECT_EQ(bad.second(1), (std::vector<float>{1, 0}));
}

TEST(SlerpPairs, RetainsTheLargestAnglesAndTheLowestOfTies) {
  const Vectors x = {{1, 0}, {1, 0}, {1, 0}, {1, 0}}, y = {{1, 0.1F}, {0, 1}, {0, 2}, {1, 0.2F}};
  Pair p(x, y, 0.6F, 1);
  EXPECT_EQ(p.second(1), y[1]);
  EXPECT_EQ(p.first(1), x[1]);
  EXPECT_NE(p.second(2), y[2]);
  EXPECT_NE(p.first(0), x[0]);
  Pair all(x, y, 0.6F, 4);
  for (std::int32_t i = 0; i < 4; ++i) EXPECT_EQ(all.second(i), y[static_cast<std::size_t>(i)]);
}

// The shared direction cuts the angle as t says; lengths stay. Any vectors.
TEST(SlerpPairs, AnglesOfRandomVectors) {
  for (const std::int32_t d : {3, 8, 128}) {
    const auto x = RandomLayer::normals(static_cast<std::size_t>(d), 3, d), y = RandomLayer::normals(static_cast<std::size_t>(d), 4, d);
    Pair p({x}, {y}, 0.6F, 0);
    const auto e = p.first(0);
    const auto length = [](const std::vector<float>& v) {
      double s = 0;
      for (const float c : v) s += double{c} * double{c};
      return std::sqrt(s);
    };
    const auto angle = [&](const std::vector<float>& u, const std::vector<float>& v) {
      double s = 0;
      for (std::size_t c = 0; c < u.size(); ++c) s += double{u[c]} * double{v[c]};
      return std::acos(s / length(u) / length(v));
    };
    EXPECT_NEAR(length(e), length(x), 1e-5);
    EXPECT_NEAR(length(p.second(0)), length(y), 1e-5);
    EXPECT_NEAR(angle(e, p.second(0)), 0, 1e-3);
    EXPECT_NEAR(angle(x, e), 0.6 * angle(x, y), 1e-5);
    EXPECT_NEAR(angle(y, e), 0.4 * angle(x, y), 1e-5);
  }
}

}  // namespace
}  // namespace kvlab::test
