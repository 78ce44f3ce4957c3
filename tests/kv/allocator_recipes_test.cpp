#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/error_of.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kPrompt = 400;

// A pass of 30 tokens per chunk, made of the prompt's last queries and keys, whose chunks observe halves of the prompt, or all of it.
ExtraPass pass_over(const AttentionTrace& trace, std::int32_t chunks) {
  ExtraPass pass;
  pass.num_tokens = 30 * chunks;
  for (std::int32_t c = 0; c < chunks; ++c) pass.chunks.push_back({30 * c, 30 * (c + 1), kPrompt * c / chunks, kPrompt * (c + 1) / chunks});
  const auto last = [&](const std::vector<float>& x, std::int32_t width) {
    return std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(kPrompt - pass.num_tokens) * width,
                              x.begin() + static_cast<std::ptrdiff_t>(kPrompt) * width);
  };
  std::int32_t stream = 0;
  for (const LayerTensors& l : trace.layers) {
    LayerTensors& t = pass.layers.emplace_back();
    t.q = last(l.q, trace.q_heads * trace.head_dim);
    t.k = last(l.k, trace.kv_heads * trace.head_dim);
    t.v = last(l.v, trace.kv_heads * trace.head_dim);
    t.hidden = RandomLayer::normals(static_cast<std::size_t>(pass.num_tokens * trace.hidden_dim), 8, ++stream);
    t.gradient.assign(static_cast<std::size_t>(pass.num_tokens), 0.5F);
  }
  return pass;
}

const AttentionTrace& trace_with_passes() {
  static const AttentionTrace trace = [] {
    AttentionTrace t = synthetic_trace("layers: 5, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 400, decode_tokens: 6");
    t.hidden_dim = 48;
    std::int32_t stream = 0;
    for (LayerTensors& l : t.layers) l.w_o = RandomLayer::normals(48U * 8 * 32, 9, ++stream);
    t.passes["reconstruct"] = pass_over(t, 2);
    t.passes["reconstruct_gradient"] = pass_over(t, 2);
    t.passes["lookahead"] = pass_over(t, 1);
    return t;
  }();
  return trace;
}

const AttentionReference& reference() {
  static const AttentionReference full = full_attention(trace_with_passes());
  return full;
}

class AllocatorRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(AllocatorRecipe, KeepsItsBudgetOnAverageAndEverythingAtFullBudget) {
  const auto with = [](std::int32_t budget) { return replay(trace_with_passes(), reference(), load_recipe(GetParam(), budget)); };
  for (const std::int32_t budget : {40, 128}) {
    const ReplayResult cut = with(budget);
    EXPECT_LE(cut.kept_tokens, budget);
    EXPECT_GE(cut.kept_tokens, budget - 1) << "the budget is used";
    EXPECT_GT(cut.mean.attention_mass, 0.1);
    EXPECT_LT(cut.mean.attention_mass, 1);
  }
  EXPECT_EQ(with(kPrompt - 1).kept_tokens, kPrompt - 1);
  const ReplayResult all = with(kPrompt);
  EXPECT_EQ(all.kept_tokens, kPrompt);
  EXPECT_EQ(all.mean.output_rel_err, 0);
  EXPECT_EQ(all.mean.kl, 0);
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorRecipe,
                         ::testing::Values("pyramidkv", "adakv", "ada_pyramidkv", "criticalkv_ada", "cake", "dynamickv", "kvgrad", "kvzip",
                                           "kvzip_plus", "kvzip_uniform", "kvcompose", "laq", "laq_plus", "compresskv"),
                         [](const auto& info) { return std::string(info.param); });

TEST(KvGrad, RefusesRecordingsWithoutGradients) {
  AttentionTrace trace = trace_with_passes();
  const KvPolicy policy(load_recipe("kvgrad", 40), shape_of(trace, 2));
  const auto error = [&] { return error_of([&] { check_needs(policy.needs(), trace, "kvgrad"); }); };
  const std::string how = "record it with --pass reconstruct_gradient, or in an experiment with 'record: {gradients: true}'";
  EXPECT_EQ(error(), "no error");
  for (LayerTensors& layer : trace.passes.at("reconstruct_gradient").layers) layer.gradient.clear();
  EXPECT_EQ(error(), "recipe 'kvgrad' observes gradients of the extra pass, which trace '" + trace.name + "' does not have; " + how);
  trace.passes.erase("reconstruct_gradient");
  EXPECT_EQ(error(), "recipe 'kvgrad' observes the extra pass 'reconstruct_gradient', which trace '" + trace.name + "' does not have; " +
                         how + " (of a model with windows, a prompt that is shorter than the window together with a piece of the pass)");
}

ReplayResult replay_text(const std::string& text, CountSource* counts = nullptr) {
  return replay(trace_with_passes(), reference(), recipe_of(text), {.counts = counts});
}

TEST(LayerRecipes, SimLayerKvCutsLazyLayersAlone) {
  RecordedCounts recorded;
  const auto with = [&](const std::string& tau) {
    return replay_text("{recipe: simlayerkv, budget_tokens: 100, allocator: {lazy_layers: {tau: " + tau + "}}}", &recorded);
  };
  EXPECT_EQ(with("1").mean.output_rel_err, 0);
  EXPECT_EQ(with("0").kept_tokens, 100);
  recorded = {};
  const ReplayResult some = with("0.45");
  std::vector<std::vector<std::int32_t>> after_prompt(5);
  for (const RecordedCounts::Entry& e : recorded.entries())
    if (e.step == 0) nth(after_prompt, e.layer) = e.counts;
  std::multiset<std::int32_t> kept;
  for (std::size_t l = 0; l < 5; ++l) {
    ASSERT_EQ(after_prompt[l].size(), 2U);
    EXPECT_EQ(after_prompt[l][0], after_prompt[l][1]);
    EXPECT_EQ(after_prompt[l][0] == kPrompt, some.by_layer[l].output_rel_err == 0) << l;
    kept.insert(after_prompt[l][0]);
  }
  EXPECT_EQ(kept.count(100) + kept.count(kPrompt), 5U);
  EXPECT_GT(kept.count(100), 0U);
  EXPECT_GT(kept.count(kPrompt), 0U);
  EXPECT_DOUBLE_EQ(some.kept_tokens, std::accumulate(kept.begin(), kept.end(), 0) / 5.0);
}

TEST(LayerRecipes, RetrievalHeadsLoseNothing) {
  for (const char* name : {"duo", "razor"}) {
    const ReplayResult cut = replay_text(std::string("{recipe: ") + name + ", budget_tokens: 120}");
    const int whole =
        static_cast<int>(std::count_if(cut.by_head.begin(), cut.by_head.end(), [](const Fidelity& f) { return f.output_rel_err == 0; }));
    const int wanted = std::string(name) == "duo" ? 5 : 2;  // 50 % and 15 % of ten heads
    EXPECT_EQ(whole, wanted) << name;
    EXPECT_DOUBLE_EQ(cut.kept_tokens, (wanted * kPrompt + (10 - wanted) * 120) / 10.0) << name;
    for (std::size_t t = 0; t < cut.by_step.size(); ++t)  // the others stay at the budget in decode, and attend to the new token too
      EXPECT_NEAR(cut.by_step[t].attended_tokens, (wanted * (kPrompt + 1.0 + static_cast<double>(t)) + (10 - wanted) * 121) / 10.0, 1e-6)
          << name;
    EXPECT_EQ(replay_text(std::string("{recipe: ") + name + ", budget_tokens: 500}").mean.output_rel_err, 0);
  }
}

// Later chunks of a prompt see sinks and latest tokens alone through the streaming heads, which are found at the first cut.
TEST(LayerRecipes, DuoCutsStreamingHeadsAfterEachChunk) {
  const AttentionTrace trace = sample({.prompt = 230, .decode = 5, .chunk = 60});
  const Recipe recipe = load_recipe("duo", 100);
  RecordedCounts recorded;
  replay(trace, full_attention(trace), recipe, {.counts = &recorded});
  ScriptedCounts script(recorded.entries());
  const ShapeReplay steps = replay_shapes(trace, recipe, &script);
  const std::vector<std::int32_t> ends = step_ends(trace);
  for (std::size_t t = 0; t < ends.size(); ++t)
    for (std::size_t r = 0; r < 6; ++r) {
      const bool streams = ends[t] > 100 && steps.held.back()[r] < ends.back();
      EXPECT_EQ(steps.held[t][r], streams ? 100 : ends[t]) << "row " << r << " at " << ends[t];
    }
  EXPECT_EQ(std::count(steps.held.back().begin(), steps.held.back().end(), 100), 3);
}

TEST(LayerRecipes, TheTableIsTheBudget) {
  const ReplayResult cut = replay_text("{recipe: layer_table, budget_tokens: 100}");
  EXPECT_DOUBLE_EQ(cut.kept_tokens, (150 + 50 + 3 * 100) / 5.0);
  EXPECT_DOUBLE_EQ(cut.by_layer[0].attended_tokens - cut.by_layer[1].attended_tokens, 100);
}

// A token is tested when it leaves the window, those of the prompt at its end: what stays then is still there after any number of steps.
TEST(LayerRecipes, ThresholdEvictionTestsATokenOnce) {
  const AttentionTrace all = synthetic_trace("layers: 2, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 300, decode_tokens: 80");
  const auto older_after = [&](std::int32_t steps) {
    AttentionTrace trace = all;
    trace.num_tokens = 300 + steps;
    return replay(trace, full_attention(trace), load_recipe("evict_threshold")).kept;
  };
  const auto last = older_after(80);
  for (const std::int32_t steps : {1, 40, 79}) {
    auto rows = older_after(steps);
    std::size_t deleted = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int32_t tested = 300 + steps - 128;
      auto later = last[r];
      std::erase_if(later, [&](std::int32_t position) { return position >= tested; });
      std::erase_if(rows[r], [&](std::int32_t position) { return position >= tested; });
      EXPECT_EQ(later, rows[r]) << "row " << r << " after " << steps << " steps";
      EXPECT_GT(rows[r].size(), 10U);
      deleted += static_cast<std::size_t>(tested) - rows[r].size();
    }
    EXPECT_GT(deleted, 20U);
  }
}

TEST(LayerRecipes, ThresholdEvictionKeepsWhatReachesTheThreshold) {
  const auto with = [](const std::string& threshold) {
    return replay_text("{recipe: evict_threshold, allocator: {score_threshold: {min_score: " + threshold + "}}}");
  };
  const ReplayResult none = with("0"), some = with("0.5"), most = with("1e9");
  EXPECT_EQ(none.kept_tokens, kPrompt);
  EXPECT_EQ(none.mean.output_rel_err, 0);
  EXPECT_EQ(most.kept_tokens, 132);  // 4 sinks and the last 128
  EXPECT_GT(some.kept_tokens, 132);
  EXPECT_LT(some.kept_tokens, kPrompt);
  EXPECT_LT(some.mean.output_rel_err, most.mean.output_rel_err);
}

}  // namespace
}  // namespace kvlab::test
