#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

// KVzap: scores by a small trained model of the hidden state.

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
    for (std::int32_t l = 0; l < 3; ++l)
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

// Fast KVzip: scores by a small trained gate of the hidden state.

constexpr std::int32_t kHidden = 48, kHeads = 2, kGroup = 2, kRank = 6, kSinks = 3;

// Random gates with the published shapes.
struct Gates : TrainedFile {
  explicit Gates(std::int32_t layers, std::int32_t heads = kHeads, std::int32_t sinks = kSinks) : TrainedFile(19) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::string at = "layers." + std::to_string(l) + ".";
      add(at + "q_proj.weight", {heads * kGroup * kRank, kHidden}), add(at + "q_proj.bias", {heads * kGroup * kRank});
      add(at + "k_proj.weight", {heads * kRank, kHidden}), add(at + "q_norm.weight", {kRank}), add(at + "k_norm.weight", {kRank});
      add(at + "k_base", {heads, 1, sinks, kRank}), add(at + "b", {heads, 1, kGroup});
    }
  }
  // The score of input h [kHidden] for a KV head of a layer, in float64.
  [[nodiscard]] double score(std::int32_t layer, std::int32_t head, const float* h) const {
    const auto value = [&](const std::string& name, std::int32_t line, std::int32_t column) {
      return at("layers." + std::to_string(layer) + "." + name, line, column);
    };
    const auto projected = [&](const std::string& proj, const std::string& norm, std::int32_t row, bool biased) {
      std::vector<double> x;
      double squares = 0;
      for (std::int32_t i = row * kRank; i < (row + 1) * kRank; ++i) {
        x.push_back(biased ? value(proj + ".bias", 0, i) : 0);
        for (std::int32_t c = 0; c < kHidden; ++c) x.back() += value(proj + ".weight", i, c) * static_cast<double>(h[c]);
        squares += x.back() * x.back();
      }
      for (std::int32_t i = 0; i < kRank; ++i) nth(x, i) *= value(norm + ".weight", 0, i) / std::sqrt(squares / kRank + 1e-6);
      return x;
    };
    const std::vector<double> k = projected("k_proj", "k_norm", head, false);
    double mean = 0;
    for (std::int32_t g = head * kGroup; g < (head + 1) * kGroup; ++g) {
      const std::vector<double> q = projected("q_proj", "q_norm", g, true);
      const double own = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(kRank) + value("b", 0, g);
      double others = 0;
      for (std::int32_t s = head * kSinks; s < (head + 1) * kSinks; ++s) {
        double z = 0;
        for (std::int32_t i = 0; i < kRank; ++i) z += value("k_base", s, i) * nth(q, i);
        others += std::exp(z / std::sqrt(kRank) - own);
      }
      mean += 1 / (1 + others) / kGroup;
    }
    return mean;
  }
};

std::string fast_kvzip(const std::string& file, const std::string& more = ", budget_tokens: 50") {
  return "{recipe: fast_kvzip, scorer: {hidden_gate: {sinks_tokens: 2, recent_tokens: 8}}, weights: " + file + more + "}";
}

// The largest scores of all layers and heads together stay, in addition to 2 first and 8 last tokens per row: 6 rows of 50 tokens on
// average.
TEST(FastKvzip, KeepsTheLargestScoresByHand) {
  const AttentionTrace trace = sample({});  // 3 layers, 2 KV heads, 200 tokens in chunks of 90
  const Gates gates(3);
  std::vector<double> all;
  const auto score = [&](std::int32_t row, std::int32_t t) {
    return gates.score(row / 2, row % 2, nth(trace.layers, row / 2).hidden.data() + t * kHidden);
  };
  for (std::int32_t row = 0; row < 6; ++row)
    for (std::int32_t t = 2; t < 192; ++t) all.push_back(score(row, t));
  std::sort(all.begin(), all.end(), std::greater<>());
  EXPECT_GT(all.back(), 0);
  EXPECT_LT(all.front(), 1);
  const std::size_t count = 6 * 40;
  ASSERT_GT(all[count - 1] - all[count], 1e-6);
  const double least = (all[count - 1] + all[count]) / 2;
  const ReplayResult result = replay_listed(fast_kvzip(gates.file()), trace);
  for (std::int32_t row = 0; row < 6; ++row) {
    std::vector<std::int32_t> expected;
    for (std::int32_t t = 0; t < 200; ++t)
      if (t < 2 || t >= 192 || score(row, t) > least) expected.push_back(t);
    EXPECT_EQ(nth(result.kept_of_prompt, row), expected) << row;
  }
}

// Locret: scores by a small trained model of a token's query, key and value.

constexpr std::int32_t kWidth = (4 + 2 * kHeads) * 32, kMid = 5;  // of sample({})

struct Models : TrainedFile {
  explicit Models(std::int32_t layers, std::int32_t width = kWidth) : TrainedFile(23, 0.1F) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::string at = "layers." + std::to_string(l) + ".";
      add(at + "fc1.weight", {kMid, width}), add(at + "fc2.weight", {kHeads, kMid});
    }
  }
  // The score of token t for a KV head of a layer, in float64.
  [[nodiscard]] double score(const AttentionTrace& trace, std::int32_t layer, std::int32_t head, std::int32_t t) const {
    const LayerTensors& tensors = nth(trace.layers, layer);
    std::vector<float> x(tensors.pre_q.begin() + t * 128, tensors.pre_q.begin() + (t + 1) * 128);
    x.insert(x.end(), tensors.pre_k.begin() + t * 64, tensors.pre_k.begin() + (t + 1) * 64);
    x.insert(x.end(), tensors.v.begin() + t * 64, tensors.v.begin() + (t + 1) * 64);
    const std::string name = "layers." + std::to_string(layer) + ".";
    double score = 0;
    for (std::int32_t m = 0; m < kMid; ++m) {
      double z = 0;
      for (std::int32_t c = 0; c < kWidth; ++c) z += at(name + "fc1.weight", m, c) * double{nth(x, c)};
      score += at(name + "fc2.weight", head, m) * z / (1 + std::exp(-z));
    }
    return score;
  }
};

std::string locret(const std::string& file, std::int32_t budget) {
  return "{recipe: locret, budget_tokens: " + std::to_string(budget) +
         ", scorer: {retaining_heads: {recent_tokens: 10}}, weights: " + file + "}";
}

// The chunks of 90, 90 and 20 tokens, cut one after another: the newest 10 tokens, then the largest scores of the tokens that are left.
TEST(Locret, KeepsTheLargestScoresChunkByChunk) {
  const AttentionTrace trace = sample({});  // 3 layers, 4 query heads and 2 KV heads of 32 channels, 200 tokens
  const Models models(3);
  const ReplayResult result = replay_listed(locret(models.file(), 60), trace);
  for (std::int32_t row = 0; row < 6; ++row) {
    std::vector<std::pair<double, std::int32_t>> held;
    std::int32_t seen = 0;
    for (const std::int32_t end : {90, 180, 200}) {
      for (; seen < end; ++seen) held.emplace_back(models.score(trace, row / 2, row % 2, seen), seen);
      std::sort(held.begin(), held.end(), [&](const auto& a, const auto& b) {
        const bool a_stays = a.second >= end - 10, b_stays = b.second >= end - 10;
        return a_stays != b_stays ? a_stays : a.first > b.first;
      });
      ASSERT_GT(held[59].first - held[60].first, 1e-5);
      held.resize(60);
    }
    std::vector<std::int32_t> expected;
    for (const auto& [score, position] : held) expected.push_back(position);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(nth(result.kept_of_prompt, row), expected) << row;
    EXPECT_EQ(nth(result.kept, row).size(), 84U) << "decoded tokens all stay";
  }
}

TEST(Locret, WithRoomForThePromptNothingGoes) {
  const AttentionTrace trace = sample({});
  EXPECT_EQ(replay_listed(locret(Models(3).file(), 200), trace).kept_tokens, 200);
}

TEST(TrainedScorers, JudgeTokensAlikeInAnyChunks) {
  const auto expect_alike = [](const std::string& recipe) {
    const auto whole = replay_listed(recipe, sample({.chunk = 0})), cut = replay_listed(recipe, sample({.chunk = 33}));
    EXPECT_EQ(std::tuple(whole.kept_of_prompt, whole.kept), std::tuple(cut.kept_of_prompt, cut.kept));
  };
  expect_alike(zap("0.1", Surrogates(3, 2, 48, 7).file()));
  expect_alike(fast_kvzip(Gates(3).file()));
}

TEST(TrainedScorers, CostWhatTheyCompute) {
  const auto expect = [](const std::string& recipe) { expect_cost_is_replay(sample({}), recipe_of(recipe)); };
  for (const std::int32_t mid : {0, 7}) expect(zap("0.1", Surrogates(3, 2, 48, mid).file()));
  expect(fast_kvzip(Gates(3).file()));
  expect(locret(Models(3).file(), 60));
}

// Without a file only costs are known, of the published sizes. Decode steps of locret score nothing.
TEST(TrainedScorers, NeedWeightsToCompute) {
  EXPECT_TRUE(needs_weights("kvzap"));
  EXPECT_EQ(flops_without_weights("kvzap", "hidden_scores"), 2 * 2 * 300 * (512 * 100 + 2 * 512));
  EXPECT_EQ(flops_without_weights("fast_kvzip", "gate_scores"), 2 * 2 * 300 * ((8 + 2) * 16 * 100 + 8 * 16 * 17));
  EXPECT_EQ(flops_without_weights("locret", "qkv_scores"), 2 * 2 * 300 * 1024 * (12 * 64 + 2));
  EXPECT_EQ(flops_without_weights("locret", "qkv_scores", {300, 1, 300, {300}, {}}), 0);
}

TEST(TrainedScorers, RefuseFilesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const auto why = [&](const std::string& recipe) { return error_of([&] { replay_listed(recipe, trace); }); };
  EXPECT_THAT(why(zap("0", Surrogates(4, 2, 48, 0).file())), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why(zap("0", Surrogates(2, 2, 48, 0).file())), HasSubstr("has no tensor 'layers.2.weight'"));
  EXPECT_THAT(why(zap("0", Surrogates(3, 4, 48, 0).file())), HasSubstr("has shape [4, 48], the model needs [2, 48]"));
  EXPECT_THAT(why(zap("0", Surrogates(3, 2, 50, 6).file())), HasSubstr("has shape [6, 50], the model needs [6, 48]"));
  EXPECT_THAT(why(zap("0", Surrogates(3, 3, 48, 6).file())), HasSubstr("'layers.0.2.weight'"));
  EXPECT_THAT(why(fast_kvzip(Gates(4).file(), "")), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why(fast_kvzip(Gates(2).file(), "")), HasSubstr("has no tensor 'layers.2.q_proj.weight'"));
  EXPECT_THAT(why(fast_kvzip(Gates(3, 4).file(), "")), HasSubstr("has shape [48, 48], the model needs [24, 48]"));
  EXPECT_THAT(why(locret(Models(4).file(), 60)), HasSubstr("more than the model's 3 layers"));
  EXPECT_THAT(why(locret(Models(3, 300).file(), 60)), HasSubstr("has shape [5, 300], the model needs [5, 256]"));
}

}  // namespace
}  // namespace kvlab::test
