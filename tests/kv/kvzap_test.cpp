// KVzap: scores by a small trained model of the hidden state.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

// Random models as published: one layer where `mid` is 0, else two.
class Surrogates : public TrainedFile {
 public:
  Surrogates(std::int32_t layers, std::int32_t heads, std::int32_t hidden, std::int32_t mid) : TrainedFile(17, 0.3F), mid_(mid) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::string at = "layers." + std::to_string(l) + ".";
      if (mid == 0) {
        add(at + "weight", {heads, hidden}), add(at + "bias", {heads});
      } else {
        add(at + "0.weight", {mid, hidden}), add(at + "0.bias", {mid});
        add(at + "2.weight", {heads, mid}), add(at + "2.bias", {heads});
      }
    }
  }
  // The score of input h [hidden] for a KV head of a layer, in float64.
  [[nodiscard]] double score(std::int32_t layer, std::int32_t head, const float* h, std::int32_t hidden) const {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const auto row = [&](const std::string& part, std::int32_t r, const auto* x, std::int32_t n) {
      double sum = at(part + "bias", 0, r);
      for (std::int32_t c = 0; c < n; ++c) sum += at(part + "weight", r, c) * static_cast<double>(x[c]);
      return sum;
    };
    if (mid_ == 0) return row(name, head, h, hidden);
    std::vector<double> between;
    for (std::int32_t m = 0; m < mid_; ++m) {
      const double x = row(name + "0.", m, h, hidden);
      between.push_back(x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))));
    }
    return row(name + "2.", head, between.data(), mid_);
  }

 private:
  std::int32_t mid_;
};

std::string zap(const std::string& threshold, const std::string& file) {
  return "{recipe: kvzap, allocator: {score_threshold: {min_score: " + threshold + "}}, weights: " + file + "}";
}

// Thresholds that keep some of the tokens: a token of the prompt stays if it is among the last 128 or its score reaches the threshold.
TEST(KvZap, KeepsWhatScoresByHand) {
  for (const std::int32_t mid : {0, 7}) {
    const AttentionTrace trace = sample({});  // 3 layers, 2 KV heads, 200 tokens in chunks of 90
    const Surrogates models(3, 2, trace.hidden_dim, mid);
    const ReplayResult result = replay_listed(zap("0.1", models.file()), trace);
    std::size_t cut = 0;
    for (std::int32_t l = 0; l < 3; ++l) {
      for (std::int32_t h = 0; h < 2; ++h) {
        std::vector<std::int32_t> expected;
        for (std::int32_t t = 0; t < 200; ++t) {
          const double score = models.score(l, h, nth(trace.layers, l).hidden.data() + t * trace.hidden_dim, trace.hidden_dim);
          ASSERT_GT(std::fabs(score - 0.1), 1e-4);
          if (t >= 72 || score >= 0.1) expected.push_back(t);
        }
        EXPECT_EQ(nth(result.kept_of_prompt, l * 2 + h), expected) << mid << " " << l << " " << h;
        cut += 200 - expected.size();
      }
    }
    EXPECT_GT(cut, 60U);  // of 6 x 72 that may go
    EXPECT_LT(cut, 400U);
  }
}

TEST(KvZap, ThresholdsAtTheEnds) {
  const AttentionTrace trace = sample({});
  const std::string file = Surrogates(3, 2, trace.hidden_dim, 0).file();
  EXPECT_EQ(replay_listed(zap("-1e30", file), trace).kept_tokens, 200);
  const ReplayResult none = replay_listed(zap("1e30", file), trace);
  for (const auto& row : none.kept_of_prompt) {
    ASSERT_EQ(row.size(), 128U);
    EXPECT_EQ(row.front(), 72);
  }
  for (const auto& row : none.kept) EXPECT_EQ(row.size(), 128U);  // each decoded token lets one go
}

// With a budget in place of the threshold.
TEST(KvZap, ProtectsFirstAndLatestTokens) {
  const AttentionTrace trace = sample({});
  const ReplayResult result = replay_listed(
      "{recipe: kvzap, scorer: {hidden_surrogate: {sinks_tokens: 4, recent_tokens: 20}}, allocator: uniform, trigger: prefill_end, "
      "budget_tokens: 40, weights: " +
          Surrogates(3, 2, trace.hidden_dim, 0).file() + "}",
      trace);
  for (const auto& row : result.kept_of_prompt) {
    ASSERT_EQ(row.size(), 40U);
    EXPECT_EQ(row[3], 3);
    EXPECT_EQ(row[20], 180);
  }
}

TEST(KvZap, TokensAreJudgedAlikeInAnyChunks) {
  const std::string recipe = zap("0.1", Surrogates(3, 2, 48, 7).file());
  const auto whole = replay_listed(recipe, sample({.chunk = 0})), cut = replay_listed(recipe, sample({.chunk = 33}));
  EXPECT_EQ(whole.kept_of_prompt, cut.kept_of_prompt);
  EXPECT_EQ(whole.kept, cut.kept);
}

TEST(KvZap, CostsWhatItComputes) {
  for (const std::int32_t mid : {0, 7}) expect_cost_is_replay(sample({}), recipe_of(zap("0.1", Surrogates(3, 2, 48, mid).file())));
}

// Without a file only costs are known, of the published two-layer form.
TEST(KvZap, WeightsAreNeededToCompute) {
  EXPECT_TRUE(needs_weights("kvzap"));
  EXPECT_EQ(flops_without_weights("kvzap", "hidden_scores"), 2 * 2 * 300 * (512 * 100 + 2 * 512));
}

TEST(KvZap, RefusesFilesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const auto why = [&](const Surrogates& models) { return error_of([&] { replay_listed(zap("0", models.file()), trace); }); };
  EXPECT_THAT(why({4, 2, 48, 0}), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why({2, 2, 48, 0}), HasSubstr("has no tensor 'layers.2.weight'"));
  EXPECT_THAT(why({3, 4, 48, 0}), HasSubstr("has shape [4, 48], the model needs [2, 48]"));
  EXPECT_THAT(why({3, 2, 50, 6}), HasSubstr("has shape [6, 50], the model needs [6, 48]"));
  EXPECT_THAT(why({3, 3, 48, 6}), HasSubstr("'layers.0.2.weight'"));
}

}  // namespace
}  // namespace kvlab::test
