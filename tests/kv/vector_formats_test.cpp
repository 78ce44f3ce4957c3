// TurboQuant and KVQuant: codes of single vectors.
#include <numbers>

#include "kernels/model/rope/rotary.h"
#include "tests/kv/format_fixture.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kHeads{1, 8, 2, 64, 128};

// Relative errors of the best quantizers of a Gaussian with 2, 4, 8 and 16 levels (Max 1960, table I).
TEST(TurboQuant, ErrorIsThatOfTheBestScalarQuantizer) {
  const double expected[] = {0.3634, 0.1175, 0.03454, 0.009497};
  for (int bits = 1; bits <= 4; ++bits) {
    const std::string b = std::to_string(bits);
    FormatRun run("turboquant", "{key_bits: " + b + ", value_bits: " + b + "}", kHeads, 300, 0);
    for (const bool values : {false, true})  // coordinates of 64 channels are nearly Gaussian
      EXPECT_NEAR(run.error(values), expected[bits - 1], 0.06 * expected[bits - 1]) << bits;
  }
}

// The rotation spreads a single large channel: the error is that of any other vector.
TEST(TurboQuant, OneLargeChannelCostsNothing) {
  FormatRun run("turboquant", "{key_bits: 4}", kHeads, 0, 0);
  std::vector<float> x;
  for (std::int32_t i = 0; i < 128 * 100; ++i) x.push_back(i % 64 == 5 ? 40.0F : 0.1F * static_cast<float>(i % 7));
  run.take(x, x);
  EXPECT_LT(run.error(false), 0.03);
}

// Products of decoded keys with a query over rotations: their mean and standard deviation, and the exact one.
struct Products {
  Products(const std::string& parameters, const std::vector<float>& q, int seeds) {
    double squares = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      FormatRun run("turboquant", "{" + parameters + ", seed: " + std::to_string(seed) + "}", {1, 1, 1, 64, 64}, 1, 0);
      double product = 0;
      exact = key_length = 0;
      for (std::int32_t c = 0; c < 64; ++c) {
        const double x = nth(q, c), k = nth(run.k, c);
        product += x * static_cast<double>(run.key(0, 0, c));
        exact += x * k, key_length += k * k;
      }
      mean += product / seeds, squares += product * product / seeds;
    }
    deviation = std::sqrt(squares - mean * mean);
  }
  double mean = 0, deviation = 0, exact = 0, key_length = 0;
};

// With the sketch products are right in the mean, without it the key is too short.
TEST(TurboQuant, SketchMakesProductsRightInTheMean) {
  const std::vector<float> q = RandomLayer::normals(64, 11, 3);
  const Products sketched("key_bits: 2, keys: inner_product", q, 400), plain("key_bits: 2, keys: mse", q, 400);
  EXPECT_NEAR(sketched.mean, sketched.exact, 4 * sketched.deviation / 20);
  EXPECT_NEAR(plain.mean, (1 - 0.1175) * plain.exact, 4 * plain.deviation / 20 + 0.02 * std::fabs(plain.exact));
}

// Standard deviation of the sketch alone (key_bits: 1): at most |q| |k| sqrt(pi / 2) / sqrt(d).
TEST(TurboQuant, SpreadOfTheSketchIsBounded) {
  const std::vector<float> q = RandomLayer::normals(64, 12, 3);
  const Products products("key_bits: 1, keys: inner_product", q, 200);
  double q_length = 0;
  for (const float x : q) q_length += static_cast<double>(x) * x;
  EXPECT_LT(products.deviation, 1.1 * std::sqrt(products.key_length * q_length * std::numbers::pi / 2 / 64));
  EXPECT_GT(products.deviation, 0.5 * std::sqrt(products.key_length * q_length * (std::numbers::pi / 2 - 1) / 64));
}

// Channels of K of very different sizes, turned by their positions: before RoPE a channel has one range.
struct TurnedKeys {
  static constexpr ModelShape kModel{1, 1, 1, 64, 64, 2, {10000.0}};
  std::vector<float> k;
  explicit TurnedKeys(std::int32_t tokens) {
    const std::vector<float> noise = RandomLayer::normals(static_cast<std::size_t>(tokens) * 64, 21, 0);
    const std::vector<float> frequencies = Rotary(kModel.rope, 64).frequencies(tokens);
    k.resize(noise.size());
    for (std::int32_t t = 0; t < tokens; ++t)
      for (std::int32_t c = 0; c < 32; ++c) {
        const auto at = static_cast<std::size_t>(t * 64 + c);
        const float x = (c == 3 ? 100.0F : 0.0F) + noise[at], y = noise[at + 32];
        const float angle = static_cast<float>(t) * nth(frequencies, c);
        k[at] = x * std::cos(angle) - y * std::sin(angle), k[at + 32] = y * std::cos(angle) + x * std::sin(angle);
      }
  }
  double error(const std::string& format, const std::string& parameters) const {
    FormatRun run(format, parameters, kModel, 0, 0);
    run.take(k, k);
    return run.error(false);
  }
};

TEST(Kvquant, KeysAreCodedBeforeRope) {
  const TurnedKeys keys(400);
  const double pre_rope = keys.error("kvquant", "{bits: 3}"),
               post_rope = keys.error("per_channel", "{bits: 3, group_tokens: 400, residual_tokens: 0}");
  EXPECT_LT(pre_rope, 0.1 * post_rope);
}

TEST(Kvquant, OutliersAndFirstTokensAreExact) {
  FormatRun run("kvquant", "{bits: 2, outliers_frac: 0.02, sinks_tokens: 2}", kHeads, 0, 0);
  std::vector<float> x;
  for (std::int32_t i = 0; i < 128 * 200; ++i) {
    const std::int32_t token = i / 128, c = i % 64;
    x.push_back(token < 2 || (token == 77 && c == 9) ? 500.0F + static_cast<float>(c) : static_cast<float>((i * 37) % 101) / 101);
  }
  run.take(x, x);
  for (const std::int32_t head : {0, 1}) {
    for (std::int32_t c = 0; c < 64; ++c)
      for (const std::int32_t token : {0, 1}) {
        EXPECT_EQ(run.key(head, token, c), 500.0F + static_cast<float>(c));
        EXPECT_EQ(run.value(head, token, c), 500.0F + static_cast<float>(c));
      }
    EXPECT_EQ(run.key(head, 77, 9), 509.0F);
    EXPECT_EQ(run.value(head, 77, 9), 509.0F);
  }
  EXPECT_LT(run.error(false), 1e-4);  // thresholds of the others do not see the large tokens
}

// Points where numbers are dense: less error on normal numbers than the same number of even steps over the same range.
TEST(Kvquant, PointsFollowTheNumbers) {
  FormatRun points("kvquant", "{bits: 3, outliers_frac: 0, sinks_tokens: 0}", kHeads, 500, 0);
  FormatRun even("per_token", "{bits: 3, group_channels: 0}", kHeads, 500, 0);
  EXPECT_LT(points.error(true), even.error(true));
  FormatRun apart("kvquant", "{bits: 3, outliers_frac: 0.05, sinks_tokens: 0}", kHeads, 500, 0);
  EXPECT_LT(apart.error(true), points.error(true));
  EXPECT_LT(apart.error(false), points.error(false));
}

}  // namespace
}  // namespace kvlab::test
