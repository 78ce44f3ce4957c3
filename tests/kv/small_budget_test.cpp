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

// Budgets one below the least and the least, which is not refused.
TEST(SmallBudget, IsRefusedWithTheTokensThatStay) {
  struct Case {
    std::string recipe, why;  // empty: runs
  };
  const std::string h2o = "h2o, scorer: {accumulated_attention: {sinks_tokens: 4, recent_tokens: 16, recent_frac: 0}}, budget_tokens: ";
  const std::string slide = "scope_slide, budget_tokens: 40",
                    table = ", budget_tokens: 40, allocator: {table: {unit: budget_frac, values: ";
  for (const Case& c :
       {Case{h2o + "19", "19 tokens is below the 4 first and 16 last tokens that it always keeps"},
        {h2o + "20", ""},
        {"snapkv, budget_tokens: 31", "31 tokens is below the 32 last tokens that it always keeps"},
        {"streaming, budget_tokens: 3", "3 tokens is below the 4 first tokens that it always keeps"},
        {"streaming, budget_tokens: 4", ""},
        // Half of the budget goes at once, and 10 tokens must be left.
        {"scissorhands, budget_tokens: 18", "18 tokens, of which a cut leaves 9, is below the 10 last tokens that it always keeps"},
        {"scissorhands, budget_tokens: 20", ""},
        // Decode: what is left of the prompt, the window that the prompt's scorer protects, and 8 tokens in all for the answer.
        {slide + ", trigger: {scope: {recent_tokens: 4, decode_tokens: 8}}",
         "40 tokens, of which a cut leaves 48, is below the 40 first and 32 last tokens that it always keeps"},
        {slide, ""},
        // Layer 1 has half of the budget.
        {"layer_table, budget_tokens: 63",
         "63 tokens, of which allocator 'table' leaves layer 1 31, is below the 32 last tokens that it always keeps"},
        {"layer_table, budget_tokens: 64", ""},
        // Half of what a row keeps is protected, however small its share is.
        {"h2o" + table + "0=1.9 1=0.1}}", ""},
        {"d2o" + table + "0=1.8 1=0.2}}", ""},
        {"d2o" + table + "0=1.9 1=0.15}}",
         "40 tokens, of which allocator 'table' leaves layer 1 6, is below the 4 first and 3 last tokens that it always keeps"},
        {"paged_eviction, budget_tokens: 15", "15 tokens is below a page of 16 tokens"},
        {"paged_eviction, budget_tokens: 16", ""},
        {"corm", ""}}) {  // without a budget
    const std::string begin = "recipe '" + c.recipe.substr(0, c.recipe.find(',')) + "' cannot run: a budget of ";
    EXPECT_EQ(refusal_of("{recipe: " + c.recipe + "}"), c.why.empty() ? "no error" : begin + c.why) << c.recipe;
  }
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

// A prompt that fits its budget is never cut, and peers cut protected tokens.
TEST(SmallBudget, NothingElseIsRefused) {
  Recipe mirrored = recipe_of("{recipe: snapkv, budget_tokens: 8}");
  mirrored.peer_ties = true;
  EXPECT_NO_THROW(KvPolicy(mirrored, kSmallBudgetModel));
  const KvPolicy policy(recipe_of("{recipe: snapkv, budget_frac: 1}"), kSmallBudgetModel);
  EXPECT_FALSE(policy.exceeds_budget(8));
}

}  // namespace
}  // namespace kvlab::test
