#include <numbers>

#include "policies/kv/recipe/trained_tensors.h"
#include "tests/has_all.h"
#include "tests/kv/format_fixture.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// TurboQuant and KVQuant: codes of single vectors.

constexpr ModelShape kVectorShape{1, 8, 2, 64, 128};

// Relative errors of the best quantizers of a Gaussian with 2, 4, 8 and 16 levels (Max 1960, table I).
TEST(TurboQuant, ErrorIsThatOfTheBestScalarQuantizer) {
  const double expected[] = {0.3634, 0.1175, 0.03454, 0.009497};
  for (int bits = 1; bits <= 4; ++bits) {
    const std::string b = std::to_string(bits);
    FormatRun run("turboquant", "{key_bits: " + b + ", value_bits: " + b + "}", kVectorShape, 300, 0);
    for (const bool values : {false, true})  // coordinates of 64 channels are nearly Gaussian
      EXPECT_NEAR(run.error(values), expected[bits - 1], 0.06 * expected[bits - 1]) << bits;
  }
}

// The rotation spreads a single large channel: the error is that of any other vector.
TEST(TurboQuant, OneLargeChannelCostsNothing) {
  std::vector<float> x;
  for (std::int32_t i = 0; i < 128 * 100; ++i) x.push_back(i % 64 == 5 ? 40.0F : 0.1F * static_cast<float>(i % 7));
  FormatRun run("turboquant", "{key_bits: 4}", kVectorShape, x, x);
  EXPECT_LT(run.error(false), 0.03);
}

// Products of decoded keys with a query over rotations: their mean and standard deviation, and the exact one.
struct Products {
  Products(const std::string& parameters, const std::vector<float>& q, int seeds) {
    double squares = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      FormatRun run("turboquant", "{" + parameters + ", seed: " + std::to_string(seed) + "}", {1, 1, 1, 64, 64}, 1, 0);
      const double product = dot(q.data(), run.store.rows().key(0, 0), 64);
      exact = dot(q.data(), run.k.data(), 64), key_length = dot(run.k.data(), run.k.data(), 64);
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
  const double q_length = dot(q.data(), q.data(), 64);
  EXPECT_LT(products.deviation, 1.1 * std::sqrt(products.key_length * q_length * std::numbers::pi / 2 / 64));
  EXPECT_GT(products.deviation, 0.5 * std::sqrt(products.key_length * q_length * (std::numbers::pi / 2 - 1) / 64));
}

// Channels of K of very different sizes, turned by their positions: before RoPE a channel has one range.
struct TurnedKeys {
  static constexpr ModelShape kModel{1, 1, 1, 64, 64, 2, {10000.0}};
  std::vector<float> k;
  explicit TurnedKeys(std::int32_t tokens) {
    std::vector<float> x = RandomLayer::normals(static_cast<std::size_t>(tokens) * 64, 21, 0);
    for (std::size_t i = 3; i < x.size(); i += 64) x[i] += 100.0F;
    k = turned(x, kModel.rope, range(0, tokens), 1, 64);
  }
  double error(const std::string& format, const std::string& parameters) const {
    return FormatRun(format, parameters, kModel, k, k).error(false);
  }
};

TEST(Kvquant, KeysAreCodedBeforeRope) {
  const TurnedKeys keys(400);
  const double pre_rope = keys.error("kvquant", "{bits: 3}"),
               post_rope = keys.error("per_channel", "{bits: 3, group_tokens: 400, residual_tokens: 0}");
  EXPECT_LT(pre_rope, 0.1 * post_rope);
}

TEST(Kvquant, OutliersAndFirstTokensAreExact) {
  std::vector<float> x;
  for (std::int32_t i = 0; i < 128 * 200; ++i) {
    const std::int32_t token = i / 128, c = i % 64;
    x.push_back(token < 2 || (token == 77 && c == 9) ? 500.0F + static_cast<float>(c) : static_cast<float>((i * 37) % 101) / 101);
  }
  FormatRun run("kvquant", "{bits: 2, outliers_frac: 0.02, sinks_tokens: 2}", kVectorShape, x, x);
  for (const std::int32_t head : {0, 1}) {
    for (std::int32_t c = 0; c < 64; ++c)
      for (const std::int32_t token : {0, 1}) {
        EXPECT_EQ(run.key(head, token, c), 500.0F + static_cast<float>(c));
        EXPECT_EQ(run.value(head, token, c), 500.0F + static_cast<float>(c));
      }
    EXPECT_EQ(std::tuple(run.key(head, 77, 9), run.value(head, 77, 9)), std::tuple(509.0F, 509.0F));
  }
  EXPECT_LT(run.error(false), 1e-4);  // thresholds of the others do not see the large tokens
}

// Points where numbers are dense: less error on normal numbers than the same number of even steps over the same range.
TEST(Kvquant, PointsFollowTheNumbers) {
  FormatRun points("kvquant", "{bits: 3, outliers_frac: 0, sinks_tokens: 0}", kVectorShape, 500, 0);
  FormatRun even("per_token", "{bits: 3, group_channels: 0}", kVectorShape, 500, 0);
  EXPECT_LT(points.error(true), even.error(true));
  FormatRun apart("kvquant", "{bits: 3, outliers_frac: 0.05, sinks_tokens: 0}", kVectorShape, 500, 0);
  EXPECT_LT(apart.error(true), points.error(true));
  EXPECT_LT(apart.error(false), points.error(false));
}

// fp8 with scales: numbers by hand, errors below half a step of e4m3, bytes of each granularity.

constexpr ModelShape kScaledShape{1, 4, 2, 64, 128};

std::string scaled_by(const std::string& scale, const std::string& type = "fp8_e4m3") {
  return "{scale: " + scale + ", type: " + type + "}";
}

// Two KV heads of four channels; K and V alike.
FormatRun scaled_run(const std::string& scale, const std::vector<float>& numbers, std::int32_t prompt) {
  return {"scaled_fp8", scaled_by(scale), {1, 2, 2, 4, 4}, numbers, numbers, static_cast<std::int32_t>(numbers.size()) / 8 - prompt};
}

std::vector<float> numbers_of(FormatRun& run, bool values) {
  std::vector<float> numbers;
  for (std::int32_t t = 0; t < run.seen; ++t)
    for (std::int32_t h = 0; h < 2; ++h)
      for (std::int32_t c = 0; c < 4; ++c) numbers.push_back(values ? run.value(h, t, c) : run.key(h, t, c));
  return numbers;
}

// Steps of e4m3 between 2^n and 2^(n + 1) are 2^(n - 3); below 2^-6 they are 2^-9. Two tokens of two heads, the largest of each group in
// brackets: heads 0 and 1 of token 0 [896] and [28], of token 1 [4.48] and [3.5].
const std::vector<float> kScaledNumbers = {896, 100, -3, 0.5F, 28, 1, 0.29F, 0.001F, 4.48F, 1, -1, 0, 3.5F, 0.43F, 0.1F, -0.2F};

// Scales 2, 1/16, 1/100 and 1/128. For example 100 / 2 = 50, between 48 and 52 and equally far: to the even fraction, 48; -3 / 2 is exact;
// 0.29 x 16 = 4.64, between 4.5 and 5; 0.001 x 16 = 0.016, a step of 2^-9 is nearest at 8.2 of them: 8 / 512.
TEST(ScaledFp8, TokenByHand) {
  FormatRun run = scaled_run("token", kScaledNumbers, 2);
  const std::vector<float> expected = {896,   96,    -3,     0.5F, 28,   1,           4.5F / 16,   8.0F / 512 / 16,
                                       4.48F, 0.96F, -0.96F, 0,    3.5F, 56.0F / 128, 13.0F / 128, -26.0F / 128};
  for (const bool values : {false, true}) {
    const std::vector<float> found = numbers_of(run, values);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6F * std::fabs(expected[i])) << i;
  }
}

// Head 0 has scale 2, head 1 has 28 / 448 = 1/16; of both heads together it is 2. Small numbers of head 0 are lost in steps of 2^-9 x 2.
TEST(ScaledFp8, HeadAndTensorByHand) {
  FormatRun by_head = scaled_run("head", kScaledNumbers, 2), by_tensor = scaled_run("tensor", kScaledNumbers, 2);
  const std::vector<float> of_heads = {896,  96, -3, 0.5F, 28,   1,         4.5F / 16,   8.0F / 512 / 16,
                                       4.5F, 1,  -1, 0,    3.5F, 7.0F / 16, 1.625F / 16, -3.25F / 16};
  const std::vector<float> of_layer = {896, 96, -3, 0.5F, 28, 1, 0.28125F, 0, 4.5F, 1, -1, 0, 3.5F, 0.4375F, 0.1015625F, -0.203125F};
  for (const bool values : {false, true}) {
    EXPECT_EQ(numbers_of(by_head, values), of_heads);
    EXPECT_EQ(numbers_of(by_tensor, values), of_layer);
  }
}

// Scales are those of the prompt; a later token beyond its largest number becomes that number, with a scale of its own it does not.
TEST(ScaledFp8, LaterTokensEndAtThePromptsLargest) {
  std::vector<float> numbers = kScaledNumbers;
  for (const float x : {2000.0F, -1000.0F, 8.0F, 1.0F, 56.0F, -80.0F, 1.0F, 2.0F}) numbers.push_back(x);
  FormatRun by_head = scaled_run("head", numbers, 2), by_tensor = scaled_run("tensor", numbers, 2),
            by_token = scaled_run("token", numbers, 2);
  const auto last = [](FormatRun& run) {
    const std::vector<float> all = numbers_of(run, false);
    return std::vector<float>(all.end() - 8, all.end());
  };
  EXPECT_EQ(last(by_head), (std::vector<float>{896, -896, 8, 1, 28, -28, 1, 2}));
  EXPECT_EQ(last(by_tensor), (std::vector<float>{896, -896, 8, 1, 56, -80, 1, 2}));
  EXPECT_NEAR(last(by_token)[0], 2000, 1e-3);
  EXPECT_NEAR(last(by_token)[5], -80, 1e-4);
}

// Half a step of the number's binade, and never more than half of the smallest step 2^-9, both times the scale.
TEST(ScaledFp8, ErrorsAreWithinHalfAStep) {
  for (const std::string scale : {"token", "head", "tensor"}) {
    FormatRun run("scaled_fp8", scaled_by(scale), kScaledShape, 50, 0);
    const auto largest = [&](const std::vector<float>& x, std::int32_t h, std::int32_t t) {
      float most = 0;
      for (std::int32_t i = 0; i < 50; ++i)
        for (std::int32_t g = 0; g < 2; ++g)
          for (std::int32_t c = 0; c < 64; ++c)
            if (scale == "tensor" || (g == h && (scale == "head" || i == t))) most = std::max(most, std::fabs(x[run.place(g, i, c)]));
      return most;
    };
    for (std::int32_t t = 0; t < 50; ++t)
      for (std::int32_t h = 0; h < 2; ++h) {
        const float unit = largest(run.k, h, t) / 448;
        for (std::int32_t c = 0; c < 64; ++c) {
          const float x = run.k[run.place(h, t, c)] / unit, step = std::exp2(std::floor(std::log2(std::max(std::fabs(x), 0x1p-6F))) - 3);
          EXPECT_LE(std::fabs(run.key(h, t, c) / unit - x), step / 2 * 1.0001F) << scale << t << h << c;
        }
      }
  }
}

// A layer whose heads differ by 10^5, and tokens of a head by 3 x 10^4: the finer the scale, the smaller the error of what is small.
TEST(ScaledFp8, FinerScalesKeepSmallNumbers) {
  const auto error = [](const std::string& scale) {
    std::vector<float> x = RandomLayer::normals(40 * 2 * 64, 5, 0);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= (i / 64 % 2 == 0 ? 1e5F : 1.0F) * (i / 128 % 2 == 0 ? 3e-5F : 1.0F);
    FormatRun run("scaled_fp8", scaled_by(scale), {1, 2, 2, 64, 64}, x, x);
    double wrong = 0, all = 0;
    for (std::int32_t t = 0; t < 40; t += 2)
      for (std::int32_t c = 0; c < 64; ++c) {
        const double given = run.k[run.place(1, t, c)];
        wrong += (run.value(1, t, c) - given) * (run.value(1, t, c) - given), all += given * given;
      }
    return wrong / all;
  };
  EXPECT_LT(error("token"), 1e-3);
  EXPECT_GT(error("head"), 2 * error("token"));
  EXPECT_EQ(error("tensor"), 1) << "below half of the smallest step";
}

TEST(ScaledFp8, AScaleOfCastIsAnsweredWithThisFormat) {
  const std::string error = error_of([] { make_part<FormatRegistry>("cast", "{type: fp8_e4m3, scale: head}"); });
  EXPECT_NE(error.find("'cast' has no scales: write 'format: {scaled_fp8: {scale: token}}'"), std::string::npos) << error;
}

TEST(ScaledFp8, IsSound) {
  for (const char* scale : {"token", "head", "tensor"})
    for (const std::int32_t n : {1, 9, 40}) test::expect_sound("scaled_fp8", scaled_by(scale, "fp8_e5m2"), kScaledShape, n, 5);
  FormatRun zeros = scaled_run("token", std::vector<float>(16, 0.0F), 2);
  EXPECT_EQ(numbers_of(zeros, false), std::vector<float>(16, 0.0F));
}

// Palu: K before RoPE and V as coordinates on a basis.

constexpr std::int32_t kPaluWidth = 64, kPaluRank = 8;

// Vectors of one head in a space of kPaluRank dimensions, turned by their positions where `rope` has a base.
std::vector<float> vectors_of_low_rank(std::int32_t tokens, const RopeForm& rope) {
  const std::vector<float> basis = RandomLayer::normals(kPaluRank * kPaluWidth, 31, 0);
  const std::vector<float> weight = RandomLayer::normals(static_cast<std::size_t>(tokens) * kPaluRank, 31, 1);
  std::vector<float> all;
  for (std::int32_t t = 0; t < tokens; ++t) {
    std::vector<float> x(kPaluWidth, 0.0F);
    for (std::int32_t i = 0; i < kPaluRank; ++i)
      for (std::int32_t c = 0; c < kPaluWidth; ++c) nth(x, c) += nth(weight, t * kPaluRank + i) * nth(basis, i * kPaluWidth + c);
    all.insert(all.end(), x.begin(), x.end());
  }
  return rope.base == 0 ? all : turned(all, rope, range(0, tokens), 1, kPaluWidth);
}

// A run of one head whose prompt is all of `k` and `v` but for the last `decode` tokens.
FormatRun run_of(const std::vector<float>& k, const std::vector<float>& v, const RopeForm& rope, const std::string& parameters,
                 std::int32_t decode) {
  return {"palu", parameters, {1, 1, 1, kPaluWidth, kPaluWidth, 2, rope}, k, v, decode};
}

const RopeForm kRope{10000.0};

// Keys have a low rank before RoPE alone, and tokens of decode are stored on the prompt's basis.
TEST(Palu, VectorsOfTheBasisComeBack) {
  const std::vector<float> turned = vectors_of_low_rank(300, kRope), plain = vectors_of_low_rank(300, {});
  FormatRun run = run_of(turned, plain, kRope, "{rank_frac: 0.125}", 20);
  EXPECT_LT(run.error(false), 1e-5);
  EXPECT_LT(run.error(true), 1e-5);
  EXPECT_GT(run.changed_keys(0), 290) << "latents are fp16: exact keys would not have been encoded";
  EXPECT_GT(run_of(turned, turned, {}, "{rank_frac: 0.125}", 20).error(false), 0.05) << "after RoPE the rank is higher";
  EXPECT_GT(run_of(turned, plain, kRope, "{rank_frac: 0.0625}", 0).error(true), 0.05) << "with half the rank something is lost";
}

// The error is the part outside the main directions: the least of any basis of this rank.
TEST(Palu, KeepsTheMainDirections) {
  std::vector<float> v = RandomLayer::normals(400 * kPaluWidth, 8, 1);
  double kept = 0, all = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t c = i % kPaluWidth;
    v[i] *= c >= 40 && c < 56 ? 5.0F : 1.0F;  // 16 large channels
    all += static_cast<double>(v[i]) * v[i], kept += c >= 40 && c < 56 ? static_cast<double>(v[i]) * v[i] : 0;
  }
  FormatRun run = run_of(v, v, {}, "{rank_frac: 0.25}", 0);
  EXPECT_LE(run.error(true), 1 - kept / all);
  EXPECT_GT(run.error(true), 0.8 * (1 - kept / all));
}

// A file with a basis of two given channels per head: 3 and 5 + h for K, 7 and 9 + h for V.
std::string file_of_bases(std::int32_t layers, std::int32_t heads, std::int32_t d) {
  TrainedFile bases;
  for (std::int32_t l = 0; l < layers; ++l)
    for (const bool values : {false, true}) {
      std::vector<float> basis(static_cast<std::size_t>(heads * 2 * d), 0.0F);
      for (std::int32_t h = 0; h < heads; ++h)
        for (std::int32_t i = 0; i < 2; ++i) nth(basis, (h * 2 + i) * d + (values ? 7 : 3) + i * (2 + h)) = 1.0F;
      bases.add("layers." + std::to_string(l) + (values ? ".v.basis" : ".k.basis"), {heads, 2, d}, basis);
    }
  return bases.file();
}

TEST(Palu, WeightsGiveTheBasisOfEachHead) {
  FormatRun run("palu", "{}", {1, 4, 2, 16, 32}, 0, 0);  // without RoPE
  run.format->set_weights(TrainedTensors::open(file_of_bases(1, 2, 16)));
  run.prompt = 10;
  run.step(10);
  run.step(1);
  for (std::int32_t h = 0; h < 2; ++h)
    for (std::int32_t t = 0; t < 11; ++t)
      for (std::int32_t c = 0; c < 16; ++c) {
        const float k = run.k[run.place(h, t, c)], v = run.v[run.place(h, t, c)];
        EXPECT_NEAR(run.key(h, t, c), c == 3 || c == 5 + h ? k : 0.0F, 2e-3F) << h << " " << t << " " << c;
        EXPECT_NEAR(run.value(h, t, c), c == 7 || c == 9 + h ? v : 0.0F, 2e-3F) << h << " " << t << " " << c;
      }
}

TEST(Palu, BytesOfAGivenBasisAreTheModels) {
  const auto given = make_part<FormatRegistry>("palu", "{}");
  given->set_weights(TrainedTensors::open(file_of_bases(1, 8, 128)));
  EXPECT_EQ(given->row_bytes({1, 8, 8, 128, 1024}, 0, 100), 100 * 2 * (2 * 2));
}

TEST(Palu, CostsWhatItComputesWithWeights) {
  expect_cost_is_replay(sample({}), recipe_of("{recipe: palu, weights: " + file_of_bases(3, 2, 32) + "}"));
}

TEST(Palu, RefusesWhatDoesNotFit) {
  const AttentionTrace trace = sample({});
  const auto why = [&](const std::string& rest) { return error_of([&] { replay_listed("{recipe: palu, " + rest + "}", trace); }); };
  EXPECT_THAT(why("format: {palu: {rank_frac: 1}}"), HasSubstr("rank 32 of format 'palu' saves nothing on heads of 32 channels"));
  EXPECT_THAT(why("weights: " + file_of_bases(4, 2, 32)), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why("weights: " + file_of_bases(3, 2, 16)), HasSubstr("the model needs [2, any, 32]"));
}

}  // namespace
}  // namespace kvlab::test
