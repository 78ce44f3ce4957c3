#include <gtest/gtest.h>

#include <cmath>

#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

// Drives a recipe over one random sequence and looks at the rows after each step.
class RecipeRun {
 public:
  RecipeRun(const std::string& recipe, const std::string& overrides, std::int32_t prompt, std::int32_t chunk)
      : layer_({1, 6, 2, 8, 16}, 1, kTokens, 3), prompt_(prompt), chunk_(chunk) {
    policy_ = std::make_unique<KvPolicy>(recipe_of("{recipe: " + recipe + overrides + "}"), layer_.model);
    stores_.emplace_back(layer_.model, 1, policy_->num_words(), true);
  }

  // Appends the next chunk or token; positions held by KV head 0 afterwards, ascending.
  std::vector<std::int32_t> step() {
    const std::int32_t count = seen_ < prompt_ ? std::min(chunk_, prompt_ - seen_) : 1;
    stores_[0].append(0, layer_.k[0].data() + seen_ * 16, layer_.v[0].data() + seen_ * 16, count, seen_);
    const std::vector<SeqStep> seqs = {{0, seen_, count, prompt_, -1}};
    observer_.step = {{layer_.q[0].data() + seen_ * 48, count, seen_}};
    const std::int32_t window = std::min(seen_ + count, policy_->needs().window_queries);
    observer_.window = {{layer_.q[0].data() + (seen_ + count - window) * 48, window, seen_ + count - window}};
    Ops ops(Ops::Backend::kCpu);
    const PolicyStep s{ops, layer_.model, seqs, stores_, observer_, 7};
    std::vector<Segment> segments;
    policy_->before_attention(s, 0, segments);
    policy_->after_attention(s, 0);
    seen_ += count;
    const KvRows kv = stores_[0].rows();
    std::vector<std::int32_t> held;
    for (std::int32_t i = 0; i < kv.len[0]; ++i) held.push_back(kv.position[kv.slot(0, i)]);
    std::sort(held.begin(), held.end());
    return held;
  }
  [[nodiscard]] std::int32_t seen() const { return seen_; }
  static constexpr std::int32_t kTokens = 160;

 private:
  struct StepObserver : Observer {
    Observed observe(std::int32_t) override {
      Observed in;
      in.step = step, in.window = window;
      return in;
    }
    std::vector<Queries> step, window;
  };
  RandomLayer layer_;
  std::int32_t prompt_, chunk_, seen_ = 0;
  std::unique_ptr<KvPolicy> policy_;
  std::vector<KvStore> stores_;
  StepObserver observer_;
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
