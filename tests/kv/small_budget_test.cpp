#include <gtest/gtest.h>

#include "policies/kv/policy/policy.h"
#include "sim/replay/replay.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"
#include "traces/synthetic_attention.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kSmallBudgetModel{2, 4, 2, 16, 64};

std::string refusal_of(const std::string& text) {
  return error_of([&] { KvPolicy(recipe_of(text), kSmallBudgetModel); });
}

TEST(SmallBudget, IsRefusedWithTheTokensThatStay) {
  EXPECT_EQ(
      refusal_of("{recipe: h2o, budget_tokens: 19, scorer: {accumulated_attention: {sinks_tokens: 4, recent_tokens: 16, recent_frac: 0}}}"),
      "recipe 'h2o' cannot run: a budget of 19 tokens is below the 4 first and 16 last tokens that it always keeps");
  EXPECT_EQ(
      refusal_of("{recipe: h2o, budget_tokens: 20, scorer: {accumulated_attention: {sinks_tokens: 4, recent_tokens: 16, recent_frac: 0}}}"),
      "no error");
  EXPECT_EQ(refusal_of("{recipe: snapkv, budget_tokens: 31}"),
            "recipe 'snapkv' cannot run: a budget of 31 tokens is below the 32 last tokens that it always keeps");
  EXPECT_EQ(refusal_of("{recipe: streaming, budget_tokens: 3}"),
            "recipe 'streaming' cannot run: a budget of 3 tokens is below the 4 first tokens that it always keeps");
  EXPECT_EQ(refusal_of("{recipe: streaming, budget_tokens: 4}"), "no error");
}

// Half of the budget goes at once, and 10 tokens must be left.
TEST(SmallBudget, CountsWhatACutLeaves) {
  EXPECT_EQ(
      refusal_of("{recipe: scissorhands, budget_tokens: 18}"),
      "recipe 'scissorhands' cannot run: a budget of 18 tokens, of which a cut leaves 9, is below the 10 last tokens that it always keeps");
  EXPECT_EQ(refusal_of("{recipe: scissorhands, budget_tokens: 20}"), "no error");
}

// Decode: what is left of the prompt, the window that the prompt's scorer protects, and 8 tokens in all for the answer.
TEST(SmallBudget, CountsThePromptInDecode) {
  EXPECT_EQ(
      refusal_of("{recipe: scope_slide, budget_tokens: 40, trigger: {scope: {recent_tokens: 4, decode_tokens: 8}}}"),
      "recipe 'scope_slide' cannot run: a budget of 40 tokens, of which a cut leaves 48, is below the 40 first and 32 last tokens that "
      "it always keeps");
  EXPECT_EQ(refusal_of("{recipe: scope_slide, budget_tokens: 40}"), "no error");
}

// Layer 1 has half of the budget.
TEST(SmallBudget, CountsWhatTheAllocatorLeavesALayer) {
  EXPECT_EQ(refusal_of("{recipe: layer_table, budget_tokens: 63}"),
            "recipe 'layer_table' cannot run: a budget of 63 tokens, of which allocator 'table' leaves layer 1 31, is below the 32 last "
            "tokens that it always keeps");
  EXPECT_EQ(refusal_of("{recipe: layer_table, budget_tokens: 64}"), "no error");
}

// Half of what a row keeps is protected, however small its share is.
TEST(SmallBudget, AProtectedShareIsOfWhatARowKeeps) {
  EXPECT_EQ(refusal_of("{recipe: h2o, budget_tokens: 40, allocator: {table: {unit: budget_frac, values: 0=1.9 1=0.1}}}"), "no error");
  EXPECT_EQ(refusal_of("{recipe: d2o, budget_tokens: 40, allocator: {table: {unit: budget_frac, values: 0=1.8 1=0.2}}}"), "no error");
  EXPECT_EQ(refusal_of("{recipe: d2o, budget_tokens: 40, allocator: {table: {unit: budget_frac, values: 0=1.9 1=0.15}}}"),
            "recipe 'd2o' cannot run: a budget of 40 tokens, of which allocator 'table' leaves layer 1 6, is below the 4 first and 3 last "
            "tokens that it always keeps");
}

TEST(SmallBudget, AWholePageStays) {
  EXPECT_EQ(refusal_of("{recipe: paged_eviction, budget_tokens: 15}"),
            "recipe 'paged_eviction' cannot run: a budget of 15 tokens is below a page of 16 tokens");
  EXPECT_EQ(refusal_of("{recipe: paged_eviction, budget_tokens: 16}"), "no error");
}

AttentionTrace sample_of(const std::string& options) {
  Params p = Params::from_text("{layers: 2, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 100, decode_tokens: 2" + options + "}",
                               "synthetic");
  return SyntheticAttention(read_synthetic_attention(p), 5).trace();
}

// A quarter of 100 tokens is less than the window of 32; 0.3 of 10 tokens is less than the prompt, which the window covers.
TEST(SmallBudget, AShareBelowWhatStaysKeepsThat) {
  const AttentionTrace trace = sample_of("");
  const AttentionReference reference = full_attention(trace);
  const auto run = [&](const std::string& text) { return replay(trace, reference, recipe_of(text)); };
  const ReplayResult quarter = run("{recipe: snapkv, budget_frac: 0.25}"), half = run("{recipe: snapkv, budget_frac: 0.5}");
  EXPECT_EQ(quarter.kept_tokens, 32);
  EXPECT_TRUE(quarter.exceeds_budget);
  EXPECT_EQ(half.kept_tokens, 50);
  EXPECT_FALSE(half.exceeds_budget);
  const KvPolicy policy(recipe_of("{recipe: snapkv, budget_frac: 0.3}"), kSmallBudgetModel);
  for (const std::int32_t prompt : {1, 2, 5, 10, 32}) {
    EXPECT_EQ(policy.target({0, 0, prompt, prompt, -1}, prompt), std::nullopt) << prompt;
    EXPECT_EQ(policy.exceeds_budget(prompt), prompt > 1) << prompt;
  }
  EXPECT_EQ(policy.target({0, 0, 40, 40, -1}, 40), 32);
  EXPECT_EQ(policy.target({0, 0, 200, 200, -1}, 200), 60);
}

// A budget of 30 tokens while a chunk of 40 is protected.
TEST(SmallBudget, AProtectedChunkStays) {
  const AttentionTrace trace = sample_of(", chunk_tokens: 40");
  const ReplayResult result = replay(trace, full_attention(trace), recipe_of("{recipe: citrus, budget_tokens: 30}"));
  EXPECT_EQ(result.kept_tokens, 30);  // of the prompt's last chunk of 20, and what scored best
}

// A prompt that fits its budget is never cut; without a budget there is nothing to refuse; and peers cut protected tokens.
TEST(SmallBudget, NothingElseIsRefused) {
  Recipe mirrored = recipe_of("{recipe: snapkv, budget_tokens: 8}");
  mirrored.peer_ties = true;
  EXPECT_NO_THROW(KvPolicy(mirrored, kSmallBudgetModel));
  EXPECT_EQ(refusal_of("{recipe: corm}"), "no error");
  const KvPolicy policy(recipe_of("{recipe: snapkv, budget_frac: 1}"), kSmallBudgetModel);
  EXPECT_FALSE(policy.exceeds_budget(8));
}

}  // namespace
}  // namespace kvlab::test
