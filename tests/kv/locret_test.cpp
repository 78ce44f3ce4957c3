// Locret: scores by a small trained model of a token's query, key and value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/error_of.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kHeads = 2, kWidth = (4 + 2 * kHeads) * 32, kMid = 5;  // of sample({})

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

std::string recipe_with(const std::string& file, std::int32_t budget) {
  return "{recipe: locret, budget_tokens: " + std::to_string(budget) +
         ", scorer: {retaining_heads: {recent_tokens: 10}}, weights: " + file + "}";
}

// The chunks of 90, 90 and 20 tokens, cut one after another: the newest 10 tokens, then the largest scores of the tokens that are left.
TEST(Locret, KeepsTheLargestScoresChunkByChunk) {
  const AttentionTrace trace = sample({});  // 3 layers, 4 query heads and 2 KV heads of 32 channels, 200 tokens
  const Models models(3);
  const ReplayResult result = replay_listed(recipe_with(models.file(), 60), trace);
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
  EXPECT_EQ(replay_listed(recipe_with(Models(3).file(), 200), trace).kept_tokens, 200);
}

TEST(Locret, CostsWhatItComputes) {
  const AttentionTrace trace = sample({});
  expect_cost_is_replay(trace, recipe_of(recipe_with(Models(3).file(), 60)));
}

// Without a file only costs are known, of the published width; decode steps score nothing.
TEST(Locret, WeightsAreNeededToCompute) {
  const AttentionTrace trace = sample({});
  const std::string why = error_of([&] { replay_listed("{recipe: locret}", trace); });
  EXPECT_TRUE(why.starts_with("recipe 'locret' cannot run: it needs trained tensors, write 'weights: FILE'; to be had: ")) << why;
  ShapeRun run(recipe_of("{recipe: locret}"), {2, 8, 2, 64, 100});
  const auto flops = [&](const ShapeRun::Seq& seq) {
    std::int64_t sum = 0;
    for (const OpCall& c : run.step(std::span(&seq, 1)).calls) sum += c.op == "qkv_scores" ? c.flops : 0;
    return sum;
  };
  EXPECT_EQ(flops({0, 300, 300, {0}, {}}), 2 * 2 * 300 * 1024 * (12 * 64 + 2));
  EXPECT_EQ(flops({300, 1, 300, {300}, {}}), 0);
}

TEST(Locret, RefusesFilesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const auto why = [&](const Models& models) { return error_of([&] { replay_listed(recipe_with(models.file(), 60), trace); }); };
  EXPECT_NE(why(Models(4)).find("more than the model's 3 layers"), std::string::npos) << why(Models(4));
  EXPECT_NE(why(Models(3, 300)).find("has shape [5, 300], the model needs [5, 256]"), std::string::npos) << why(Models(3, 300));
}

}  // namespace
}  // namespace kvlab::test
