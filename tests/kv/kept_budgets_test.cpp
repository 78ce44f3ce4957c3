#include <set>

#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"
#include "tests/short_run.h"

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

const Sampled& with_passes() {
  static const Sampled made = [] {
    AttentionTrace t = synthetic_trace("layers: 5, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 400, decode_tokens: 6");
    t.hidden_dim = 48;
    std::int32_t stream = 0;
    for (LayerTensors& l : t.layers) l.w_o = RandomLayer::normals(48U * 8 * 32, 9, ++stream);
    t.passes["reconstruct"] = pass_over(t, 2);
    t.passes["reconstruct_gradient"] = pass_over(t, 2);
    t.passes["lookahead"] = pass_over(t, 1);
    return with_reference(t);
  }();
  return made;
}

class AllocatorRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(AllocatorRecipe, KeepsItsBudgetOnAverageAndEverythingAtFullBudget) {
  const auto with = [](std::int32_t budget) { return with_passes().replayed(load_recipe(GetParam(), budget)); };
  for (const std::int32_t budget : {40, 128}) {
    const ReplayResult cut = with(budget);
    EXPECT_LE(cut.kept_tokens, budget);
    EXPECT_GE(cut.kept_tokens, budget - 1) << "the budget is used";
    EXPECT_GT(cut.mean.attention_mass, 0.1);
    EXPECT_LT(cut.mean.attention_mass, 1);
  }
  EXPECT_EQ(with(kPrompt - 1).kept_tokens, kPrompt - 1);
  const ReplayResult all = with(kPrompt);
  EXPECT_EQ(std::tuple(all.kept_tokens, all.mean.output_rel_err, all.mean.kl), std::tuple(kPrompt, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorRecipe,
                         ::testing::Values("pyramidkv", "adakv", "ada_pyramidkv", "criticalkv_ada", "cake", "dynamickv", "kvgrad", "kvzip",
                                           "kvzip_plus", "kvzip_uniform", "kvcompose", "laq", "laq_plus", "compresskv"),
                         [](const auto& info) { return std::string(info.param); });

TEST(KvGrad, RefusesRecordingsWithoutGradients) {
  AttentionTrace trace = with_passes().trace;
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
  return replay(with_passes().trace, with_passes().reference, recipe_of(text), {.counts = counts});
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
  EXPECT_EQ(std::tuple(none.kept_tokens, none.mean.output_rel_err), std::tuple(kPrompt, 0));
  EXPECT_EQ(most.kept_tokens, 132);  // 4 sinks and the last 128
  EXPECT_GT(some.kept_tokens, 132);
  EXPECT_LT(some.kept_tokens, kPrompt);
  EXPECT_LT(some.mean.output_rel_err, most.mean.output_rel_err);
}

// A synthetic prompt; what the generator does not make is filled in: queries and keys before RoPE are the trace's own, W_o is a
// simple pattern.
const Sampled& whole() {
  static const Sampled made = [] {
    AttentionTrace t = synthetic_trace("layers: 3, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 400, decode_tokens: 6");
    t.hidden_dim = 48;
    t.question_begin = 380;
    for (auto& layer : t.layers) {
      if (layer.pre_q.empty()) layer.pre_q = layer.q;
      if (layer.pre_k.empty()) layer.pre_k = layer.k;
      for (std::size_t i = layer.w_o.size(); i < 48U * 8 * 32; ++i) layer.w_o.push_back(static_cast<float>(i * 37 % 101) / 101 - 0.5F);
    }
    return with_reference(t);
  }();
  return made;
}

class GeometryRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(GeometryRecipe, KeepsItsBudget) {
  const std::string name = GetParam();
  const ReplayResult cut = whole().replayed(load_recipe(name, 128));
  EXPECT_LE(cut.kept_tokens, name == "lagkv" ? 144 : 128);  // its first tokens and tail have 144
  EXPECT_GT(cut.kept_tokens, 128 - 20) << "at most one chunk below";
  EXPECT_GT(cut.mean.attention_mass, 0.1);
  EXPECT_LT(cut.mean.attention_mass, 1);
}

// Two partitions are cut; 16 first tokens and a tail of 128 count in the budget.
TEST(LagKv, HoldsWhatOthersHoldAtTheSameBudget) {
  const auto kept = [](std::int32_t budget) { return whole().replayed(load_recipe("lagkv", budget)).kept_tokens; };
  for (const std::int32_t budget : {160, 200, 256, 384}) EXPECT_EQ(kept(budget), 144 + (budget - 144) / 2 * 2) << budget;
  for (const std::int32_t budget : {16, 128}) EXPECT_EQ(kept(budget), 144) << budget;
  EXPECT_EQ(kept(0), 144 + 128) << "the paper's share";
}

INSTANTIATE_TEST_SUITE_P(All, GeometryRecipe,
                         ::testing::Values("knorm", "keydiff", "lagkv", "expected_attention", "expected_attention_mean", "paged_eviction",
                                           "cur", "leverage", "noncausal_attention", "compactor", "capkv", "q_filters", "quick_prefill",
                                           "infinipot_v", "chunkkv", "windowkv", "vatp", "criticalkv", "graphkv", "kvcrush",
                                           "fair_eviction"),
                         [](const auto& info) { return std::string(info.param); });

// Drives a recipe over one random sequence and looks at the rows after each step.
class RecipeRun {
 public:
  RecipeRun(const std::string& recipe, const std::string& overrides, std::int32_t prompt, std::int32_t chunk)
      : trace_(random_trace(prompt)), walk_(trace_, recipe_of("{recipe: " + recipe + overrides + "}"), 7), chunk_(chunk) {}

  // Appends the next chunk or token; positions held by KV head 0 afterwards, ascending.
  Ints step() {
    const std::int32_t prompt = trace_.prompt_tokens, count = seen_ < prompt ? std::min(chunk_, prompt - seen_) : 1;
    walk_.step({0, seen_, count, prompt, -1},
               [&](const PolicyStep& step, std::int32_t l) { walk_.policy.before_attention(step, l, walk_.segments); });
    seen_ += count;
    return positions_of(walk_.stores[0].rows())[0];
  }
  [[nodiscard]] std::int32_t seen() const { return seen_; }

 private:
  static AttentionTrace random_trace(std::int32_t prompt) {
    const RandomLayer layer({1, 6, 2, 8, 16}, 1, 160, 3);
    AttentionTrace trace;
    trace.num_layers = 1, trace.q_heads = 6, trace.kv_heads = 2, trace.head_dim = 8, trace.hidden_dim = 16;
    trace.num_tokens = 160, trace.prompt_tokens = prompt;
    LayerTensors& t = trace.layers.emplace_back();
    t.q = layer.q[0], t.k = layer.k[0], t.v = layer.v[0];
    return trace;
  }
  AttentionTrace trace_;
  PolicyWalk walk_;
  std::int32_t chunk_, seen_ = 0;
};

// Positions ascend, each once.
bool ends_with_last(const std::vector<std::int32_t>& held, std::int32_t count, std::int32_t end) {
  return held.back() == end - 1 && held[held.size() - static_cast<std::size_t>(count)] == end - count;
}

TEST(Streaming, HoldsSinksAndTheNewestTokens) {
  RecipeRun run("streaming", ", budget_tokens: 20", 100, 30);
  std::vector<std::int32_t> held;
  while (run.seen() < 130) held = run.step();
  std::vector<std::int32_t> expected = {0, 1, 2, 3};
  for (std::int32_t i = 114; i < 130; ++i) expected.push_back(i);
  EXPECT_EQ(held, expected);
}

// Half of the budget is recent, in every step, and what was once evicted does not come back.
TEST(H2O, HalfOfTheBudgetIsRecent) {
  RecipeRun run("h2o", "", 100, 30);
  std::vector<std::int32_t> before;
  while (run.seen() < 140) {
    const std::vector<std::int32_t> held = run.step();
    if (run.seen() < 100) continue;
    EXPECT_EQ(held.size(), 20U);
    EXPECT_TRUE(ends_with_last(held, 10, run.seen()));
    for (const std::int32_t p : held)
      EXPECT_TRUE(before.empty() || p == run.seen() - 1 || std::find(before.begin(), before.end(), p) != before.end());
    before = held;
  }
  EXPECT_LT(before[0], 100);  // some heavy hitter of the prompt is left
}

TEST(Corm, KeepsItsWindowAndShrinksWithoutABudget) {
  RecipeRun run("corm", ", scorer: {attention_recency_ring: {window_tokens: 8}}", 100, 100);
  const std::vector<std::int32_t> held = run.step();
  EXPECT_TRUE(ends_with_last(held, 8, 100));
  EXPECT_LT(held.size(), 100U);
  EXPECT_GT(held.size(), 8U);
  while (run.seen() < 120) {
    const std::vector<std::int32_t> later = run.step();
    EXPECT_TRUE(ends_with_last(later, 8, run.seen()));
    EXPECT_LT(later.size(), 110U);
  }
}

TEST(ScopeSlide, NeverTouchesWhatIsLeftOfThePrompt) {
  RecipeRun run("scope_slide",
                ", budget_tokens: 30, trigger: {scope: {recent_tokens: 4, decode_tokens: 8}}, scorer: {scope: {prompt: {window_attention: "
                "{window_tokens: 4}}}}",
                100, 100);
  const std::vector<std::int32_t> prompt = run.step();
  EXPECT_EQ(prompt.size(), 30U);
  std::vector<std::int32_t> held;
  while (run.seen() < 140) held = run.step();
  EXPECT_EQ(held.size(), 38U);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), held.begin()));
  EXPECT_TRUE(ends_with_last(held, 4, 140));
}

TEST(Citrus, TheNewestChunkStaysWhileOlderTokensCompete) {
  RecipeRun run("citrus", ", budget_tokens: 50", 120, 30);
  for (std::int32_t end = 30; end <= 120; end += 30) {
    const std::vector<std::int32_t> held = run.step();
    EXPECT_EQ(static_cast<std::int32_t>(held.size()), std::min(end, 50));
    EXPECT_TRUE(ends_with_last(held, 30, end));
  }
}

TEST(LazyEviction, OscillatesAboveTheBudget) {
  RecipeRun run(
      "lazy_eviction",
      ", budget_tokens: 40, trigger: {every_n: {steps: 10}}, scorer: {recurrence_interval: {attention_frac: 0.02, recent_tokens: 10}}", 60,
      60);
  while (run.seen() < 100) {
    const std::vector<std::int32_t> held = run.step();
    EXPECT_EQ(static_cast<std::int32_t>(held.size()), 40 + (run.seen() - 60) % 10);
    EXPECT_TRUE(ends_with_last(held, 10, run.seen()));
  }
}

TEST(Tova, AllHeadsHoldTheSameTokens) {
  const AttentionTrace trace = synthetic_trace("layers: 1, q_heads: 8, kv_heads: 4, head_dim: 32, prompt_tokens: 200, decode_tokens: 6");
  const ReplayResult result = replay(trace, full_attention(trace), load_recipe("tova", 64));
  EXPECT_EQ(result.kept_tokens, 64);
  for (const Fidelity& head : result.by_head) EXPECT_EQ(head.attended_tokens, result.by_head[0].attended_tokens);
}

class DecodeRecipe : public ::testing::TestWithParam<std::string> {};

TEST_P(DecodeRecipe, CutsThePromptAndKeepsAttention) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const AttentionTrace trace = synthetic_trace("layers: 2, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 700, decode_tokens: 40");
  const std::int32_t budget = load_recipe(GetParam()).has_budget ? 320 : 0;
  const ReplayResult cut = replay(trace, full_attention(trace), load_recipe(GetParam(), budget));
  EXPECT_LT(cut.kept_tokens, 700);
  EXPECT_LE(cut.kept_tokens, budget > 0 ? 320 : 700);
  EXPECT_GT(cut.mean.attention_mass, 0.2);
}

INSTANTIATE_TEST_SUITE_P(All, DecodeRecipe,
                         ::testing::Values("streaming", "sliding_window", "random", "oracle", "h2o", "h2o_decayed", "observed_attention",
                                           "scissorhands", "tova", "sage_kv", "keyformer", "roco", "corm", "lazy_eviction", "scope_slide",
                                           "scope_adaptive", "scope_discontinuous", "attendre_lra", "attendre_lfa", "attendre_fifo",
                                           "citrus", "evict3r", "r_kv"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
