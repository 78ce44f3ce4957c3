// Palu: K before RoPE and V as coordinates on a basis.
#include "kernels/model/rope/rotary.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/kv/format_fixture.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kPaluWidth = 64, kPaluRank = 8;

// Vectors of one head in a space of kPaluRank dimensions, turned by their positions where `rope` has a base.
std::vector<float> vectors_of_low_rank(std::int32_t tokens, const RopeForm& rope) {
  const std::vector<float> basis = RandomLayer::normals(kPaluRank * kPaluWidth, 31, 0);
  const std::vector<float> weight = RandomLayer::normals(static_cast<std::size_t>(tokens) * kPaluRank, 31, 1);
  const std::vector<float> frequencies = rope.base == 0 ? std::vector<float>() : Rotary(rope, kPaluWidth).frequencies(tokens);
  std::vector<float> all;
  for (std::int32_t t = 0; t < tokens; ++t) {
    std::vector<float> x(kPaluWidth, 0.0F);
    for (std::int32_t i = 0; i < kPaluRank; ++i)
      for (std::int32_t c = 0; c < kPaluWidth; ++c) nth(x, c) += nth(weight, t * kPaluRank + i) * nth(basis, i * kPaluWidth + c);
    for (std::int32_t c = 0; c < kPaluWidth / 2 && !frequencies.empty(); ++c) {
      const auto at = static_cast<std::size_t>(c);
      const float angle = static_cast<float>(t) * frequencies[at], low = x[at], high = x[at + kPaluWidth / 2];
      x[at] = low * std::cos(angle) - high * std::sin(angle), x[at + kPaluWidth / 2] = high * std::cos(angle) + low * std::sin(angle);
    }
    all.insert(all.end(), x.begin(), x.end());
  }
  return all;
}

// A run of one head whose prompt is all of `k` and `v` but for the last `decode` tokens.
FormatRun run_of(const std::vector<float>& k, const std::vector<float>& v, const RopeForm& rope, const std::string& parameters,
                 std::int32_t decode) {
  FormatRun run("palu", parameters, {1, 1, 1, kPaluWidth, kPaluWidth, 2, rope}, 0, 0);
  run.take(k, v, decode);
  return run;
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

TEST(Palu, BytesByHand) {
  const auto format = make_part<FormatRegistry>("palu", "{rank_frac: 0.25}");
  const ModelShape model{1, 8, 8, 128, 1024};
  EXPECT_EQ(format->row_bytes(model, 0, 100), 100 * 2 * (2 * 32) + 2 * 4 * 32 * 128);
  const auto given = make_part<FormatRegistry>("palu", "{}");
  given->set_weights(TrainedTensors::open(file_of_bases(1, 8, 128)));
  EXPECT_EQ(given->row_bytes(model, 0, 100), 100 * 2 * (2 * 2)) << "the model's basis is no sequence's";
}

TEST(Palu, CostsWhatItComputesWithWeights) {
  const AttentionTrace trace = sample({});
  expect_cost_is_replay(trace, recipe_of("{recipe: palu, weights: " + file_of_bases(3, 2, 32) + "}"));
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
