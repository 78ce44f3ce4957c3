#include <gtest/gtest.h>

#include <set>

#include "policies/kv/selector/key_codes/key_codes.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

std::vector<double> turned(const float* x, std::int32_t d, const RopeForm& rope, std::int32_t steps) {
  std::vector<double> y(x, x + d);
  for (std::int32_t c = 0; c < d / 2 && rope.base > 0; ++c) {
    const double angle = steps / rope.scaling.factor * std::pow(rope.base, -2.0 * c / d), a = static_cast<double>(x[c]),
                 b = static_cast<double>(x[c + d / 2]);
    nth(y, c) = a * std::cos(angle) - b * std::sin(angle);
    nth(y, c + d / 2) = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

// A center for every key: the look-up is exact, and what remains is the rule of far queries.
TEST(A2ats, WithoutLossItRanksFarKeysAtOneDistance) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    for (const RopeForm& rope : {RopeForm(0), RopeForm(10000), RopeForm(10000, {RopeScaling::Kind::kLinear, 8})}) {
      ModelShape shape{4, 2 * group, 2, 8, 16};
      shape.rope = rope;
      Decode d(shape, 2, 60, 3);
      auto part =
          make_part<SelectorRegistry>("a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1, tokens_per_code: 1, far_tokens: 32}");
      d.prefill(*part);
      const auto rows = d.decode(*part);
      for (std::int32_t r = 0; r < 4; ++r) {
        const auto always = tokens_of({}, 1, 3, 61 - 8, 61);
        std::set<std::int32_t> expected(always.begin(), always.end());
        for (std::int32_t h = 0; h < group; ++h) {
          const std::vector<double> q = turned(d.query(r, h), 8, rope, 32 - 60);
          std::vector<double> z;
          for (std::int32_t i = 3; i < 61 - 8; ++i) {
            const std::vector<double> k = turned(d.key(r, i), 8, rope, -i);
            z.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0));
          }
          for (const std::int32_t i : best(z, 6)) expected.insert(i + 3);
        }
        EXPECT_EQ(nth(rows, r), std::vector<std::int32_t>(expected.begin(), expected.end()))
            << group << " " << rope.base << " " << rope.scaling.factor;
      }
    }
  }
}

TEST(A2ats, CodesAreNearestUnderTheQueriesMetric) {
  RandomLayer layer({1, 2, 1, 4, 8}, 1, 40, 3);
  const KvRows kv = layer.store.rows();
  std::vector<float> gram(16), root(16), centers(5 * 4);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      for (std::size_t t = 0; t < 80; ++t) gram[4 * i + j] += layer.q[0][4 * t + i] * layer.q[0][4 * t + j];
  std::vector<std::int32_t> code(40);
  const std::int32_t codes = 5, from = 0, to = 40;
  const std::int64_t seed = 7;
  const float* g = gram.data();
  float *l = root.data(), *c = centers.data();
  std::int32_t* out = code.data();
  run_cpu(KeyCodes{kv, KeyCodes::Kind::kTrain, nullptr, &codes, &l, &c, 10, &seed, &g});
  run_cpu(KeyCodes{.kv = kv, .codes = &codes, .root = &l, .centers = &c, .from = &from, .to = &to, .code = &out});
  double size = 0, spread = 0, whole = 0;
  for (const float x : gram) size += static_cast<double>(x) * static_cast<double>(x) / 16;
  const auto distance = [&](const float* a, const float* b) {
    double sum = 0;
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t j = 0; j < 4; ++j)
        sum += static_cast<double>(a[i] - b[i]) * (static_cast<double>(gram[4 * i + j]) / std::sqrt(size) + (i == j ? 1e-6 : 0)) *
               static_cast<double>(a[j] - b[j]);
    return sum;
  };
  const float zero[4] = {};
  for (std::int32_t i = 0; i < 40; ++i) {
    const double own = distance(kv.key(0, i), c + nth(code, i) * 4);
    for (std::int32_t j = 0; j < 5; ++j) EXPECT_LE(own, distance(kv.key(0, i), c + j * 4) + 1e-4);
    spread += own, whole += distance(kv.key(0, i), zero);
  }
  EXPECT_LT(spread, 0.6 * whole);  // centers represent their keys
}

TEST(A2ats, OneCenterRanksNothing) {
  Decode d({4, 4, 2, 8, 16}, 1, 60, 3);
  auto part = make_part<SelectorRegistry>("a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1, max_codes: 1}");
  d.prefill(*part);
  for (const auto& row : d.decode(*part)) EXPECT_EQ(row, tokens_of({}, 1, 3 + 6, 61 - 8, 61));
}

TEST(A2ats, ResidentIsCodesAndWindows) {
  Decode d({4, 2, 1, 8, 16}, 1, 1000, 3);
  auto part = make_part<SelectorRegistry>("a2ats");
  d.append(1000);
  // 72 of 1000 tokens, 12 bits for 936 of them, 1000 / 16 centers of 8 channels.
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {32000, 0, 0}), (TierBytes{72 * 32 + 1404 + 62 * 16, 928 * 32, 0}));
}

TEST(A2ats, KeepsTheContract) {
  const std::string small = "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1}";
  EXPECT_TRUE(large_budget_selects_everything("a2ats", "{}"));
  expect_promises("a2ats", small, {{65, 5}, {1, 14}}, {65, 4});
}

}  // namespace
}  // namespace kvlab::test
