// fp8 with scales: numbers by hand, errors below half a step of e4m3, bytes of each granularity.
#include "tests/error_of.h"
#include "tests/kv/format_fixture.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kScaledShape{1, 4, 2, 64, 128};

std::string scaled_by(const std::string& scale, const std::string& type = "fp8_e4m3") {
  return "{scale: " + scale + ", type: " + type + "}";
}

// Two KV heads of four channels; K and V alike.
FormatRun scaled_run(const std::string& scale, const std::vector<float>& numbers, std::int32_t prompt) {
  FormatRun run("scaled_fp8", scaled_by(scale), {1, 2, 2, 4, 4}, 0, 0);
  run.take(numbers, numbers, static_cast<std::int32_t>(numbers.size()) / 8 - prompt);
  return run;
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
    FormatRun run("scaled_fp8", scaled_by(scale), {1, 2, 2, 64, 64}, 0, 0);
    std::vector<float> x = RandomLayer::normals(40 * 2 * 64, 5, 0);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= (i / 64 % 2 == 0 ? 1e5F : 1.0F) * (i / 128 % 2 == 0 ? 3e-5F : 1.0F);
    run.take(x, x);
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

// A byte a number; a scale of 4 bytes for each token of K and of V, or for each of both sides of a row.
TEST(ScaledFp8, RowBytesByHand) {
  const ModelShape m{1, 8, 8, 128, 1024};
  for (const char* type : {"fp8_e4m3", "fp8_e5m2"}) {
    const auto bytes = [&](const char* scale, std::int32_t tokens) {
      return make_part<FormatRegistry>("scaled_fp8", scaled_by(scale, type))->row_bytes(m, 0, tokens);
    };
    EXPECT_EQ(bytes("token", 100), 2 * 100 * (128 + 4));
    EXPECT_EQ(bytes("head", 100), 2 * (100 * 128 + 4));
    EXPECT_EQ(bytes("tensor", 100), 2 * (100 * 128 + 4)) << "each KV head holds the layer's scale";
    EXPECT_EQ(bytes("token", 0), 0);
  }
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

}  // namespace
}  // namespace kvlab::test
