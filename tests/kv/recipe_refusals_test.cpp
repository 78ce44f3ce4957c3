#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

TEST(RecipeFile, ARemovedKeyIsExplained) {
  const std::string path = ::testing::TempDir() + "/kvlab_next_turn.yaml";
  std::ofstream(path) << "summary: s\npaper: p\nconfidence: our definition\nnext_turn: keep\n";
  Params p = Params::from_text("{recipe: " + path + "}", "kv_policy");
  const std::string error = error_of([&] { read_recipe(p); });
  EXPECT_NE(error.find("kvlab_next_turn.yaml:4:12: 'next_turn' had no effect and was removed: delete the line"), std::string::npos)
      << error;
  std::filesystem::remove(path);
}

template <class Interface>
void add_conflicts(std::vector<Conflict>& all) {
  for (const auto& [name, entry] : Registry<Interface>::table_view()) {
    Params p = Params::empty(name);
    try {
      for (const Conflict& conflict : entry.make(p)->conflicts()) all.push_back(conflict);
    } catch (const InputError&) {  // a parameter has no default
    }
  }
}

// Other words in braces would be printed as they are.
TEST(Recipe, ConflictsNameOnlyPartsOfARecipe) {
  std::vector<Conflict> all;
  add_conflicts<Scorer>(all), add_conflicts<Allocator>(all), add_conflicts<Trigger>(all), add_conflicts<Disposal>(all);
  add_conflicts<Format>(all), add_conflicts<Selector>(all), add_conflicts<PrefillSelector>(all);
  add_conflicts<PromptPruner>(all), add_conflicts<PromptRewriter>(all);
  ASSERT_GT(all.size(), 100U);
  std::set<std::string> known{"splitter"};
  for (const auto& [kind, name] : Recipe().part_names()) known.insert(kind);
  const std::regex placeholder("\\{([a-z_]+)\\}");
  for (const Conflict& conflict : all)
    for (std::sregex_iterator at(conflict.why.begin(), conflict.why.end(), placeholder), end; at != end; ++at)
      EXPECT_TRUE(known.contains((*at)[1])) << conflict.why;
}

// All of `with`, and none of `without`.
TEST(Recipe, AConflictNeedsAllOfItsTraits) {
  const auto error = [](const std::string& parts) {
    Params p = Params::from_text("{recipe: full, " + parts + "}", "kv_policy");
    return error_of([&] { read_recipe(p); });
  };
  EXPECT_NE(error("trigger: every_step").find("trigger 'every_step' acts, so there must be a scorer to rank tokens by"), std::string::npos);
  EXPECT_NE(error("trigger: every_step, scorer: recency").find("so there must be a budget"), std::string::npos);
  EXPECT_NE(error("scorer: recency").find("scorer 'recency' is never asked, because the trigger is 'never'"), std::string::npos);
  EXPECT_EQ(error("trigger: prefill_end, scorer: recency, budget_tokens: 64, disposal: merge_nearest, format: kivi"), "no error");
  EXPECT_NE(error("trigger: every_step, scorer: recency, budget_tokens: 64, disposal: merge_nearest, format: kivi")
                .find("disposal 'merge_nearest' changes tokens after format 'kivi' encoded them; trigger 'prefill_end' merges before"),
            std::string::npos);
}

// Attends to everything, and is a selector none the less: it has no budget.
class Unbudgeted final : public Selector {
 public:
  explicit Unbudgeted(Params&) {}
  Selection select(LayerStep&) override { return {}; }
};
KVLAB_REGISTER(Selector, Unbudgeted, "test_unbudgeted", "for this test", "none");

std::string error(const std::string& options) {
  return error_of([&] { recipe_of("{recipe: " + options + "}"); });
}

TEST(Budget, IsRefusedWhereNoPartHasAUseForIt) {
  const auto no_use = [](const std::string& recipe, const std::string& why) {
    return HasSubstr("recipe '" + recipe + "' has no use for a budget: " + why);
  };
  for (const std::string recipe : {"full", "kivi2", "think", "mustafar50"})
    for (const char* budget : {", budget_tokens: 64", ", budget_frac: 0.5", ", compression_ratio: 0.5"})
      EXPECT_THAT(error(recipe + budget), no_use(recipe, "it keeps and reads every token"));
  EXPECT_THAT(error("full, selector: test_unbudgeted, budget_tokens: 64"),
              no_use("full", "its selector 'test_unbudgeted' keeps to parameters of its own"));
  EXPECT_THAT(error("corm, budget_tokens: 64"), no_use("corm", "its trigger 'every_n' leaves it to allocator 'score_threshold'"));
  EXPECT_EQ(error("full, budget_tokens: 64").find('\n'), std::string::npos);
}

// A recipe that is named on the command line has no line to name.
TEST(Budget, IsRefusedWithoutAPlaceWhereThereIsNoFile) {
  EXPECT_EQ(error_of([] { load_recipe("full", 5); }), "recipe 'full' has no use for a budget: it keeps and reads every token");
}

TEST(Budget, IsTakenWhereAPartUsesIt) {
  for (const std::string recipe : {"snapkv", "quest", "lserve_pages", "kcache", "snapkv_kivi2"})
    EXPECT_EQ(error(recipe + ", budget_tokens: 64"), "no error") << recipe;
}

TEST(Budget, AShareIsAtLeastOneToken) {
  for (const bool truncates : {true, false}) {
    const Budget share{0, 0.2, truncates};
    EXPECT_EQ(share.of(1), 1);
    EXPECT_EQ(share.of(2), 1);
    EXPECT_EQ(share.of(10), 2);
  }
  EXPECT_EQ(Budget{}.of(10), 0);
}

TEST(Budget, IsRefusedByThePolicyItself) {
  constexpr ModelShape kShape{4, 8, 2, 64, 128};
  Recipe recipe = load_recipe("full");
  KvPolicy(recipe, kShape);
  recipe.budget.tokens = 64;
  recipe.has_budget = true;
  EXPECT_THROW(KvPolicy(recipe, kShape), InputError);
}

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
  return synthetic_trace("layers: 2, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 100, decode_tokens: 2" + options);
}

// A quarter of 100 tokens is less than the window of 32; 0.3 of 10 tokens is less than the prompt, which the window covers.
TEST(SmallBudget, AShareBelowWhatStaysKeepsThat) {
  const Sampled full = with_reference(sample_of(""));
  const auto run = [&](const std::string& text) { return full.replayed(recipe_of(text)); };
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

using testing::EndsWith;

TEST(UnequalHeads, AreRefusedWhereAPartTakesThemTogether) {
  const std::string together = " takes all KV heads of a layer together, but ";
  const std::string cuts = " lets them keep different numbers of tokens";
  const auto why = [](const std::string& text) { return error_of([&] { recipe_of(text); }); };
  for (const std::string allocator : {"ada", "global", "head_split", "score_threshold", "table"}) {
    const std::string part = allocator == "table" ? "{table: {values: 0=40 0.1=48}}" : allocator;
    const std::string of = together + "allocator '" + allocator + "'" + cuts;
    EXPECT_THAT(why("{recipe: snapkv, format: low_rank_keys, allocator: " + part + "}"), EndsWith("format 'low_rank_keys'" + of));
    EXPECT_THAT(why("{recipe: snapkv, selector: token_select, allocator: " + part + "}"), EndsWith("selector 'token_select'" + of));
    EXPECT_THAT(why("{recipe: kvcrush, allocator: " + part + "}"), EndsWith("scorer 'representatives'" + of));
    if (allocator == "global") continue;  // not in decode
    EXPECT_THAT(why("{recipe: compresskv, trigger: lagged, allocator: " + part + "}"),
                EndsWith("scorer 'retrieval_head_window'" + of + ", and trigger 'lagged' acts on them again"));
  }
  const std::string table = "allocator: {table: {values: 0=40 0.1=48}}}", of = together + "allocator 'table'" + cuts;
  EXPECT_THAT(why("{recipe: snapkv, scorer: {blocks: {of: key_norm}}, " + table), EndsWith("scorer 'blocks'" + of));
  EXPECT_THAT(why("{recipe: snapkv, trigger: every_step, scorer: {slices: {of: key_norm, scored: alone}}, " + table),
              EndsWith("scorer 'slices'" + of + ", and trigger 'every_step' acts on them again"));
  EXPECT_THAT(why("{recipe: snapkv, format: low_rank_keys, scorer: {chunks: {heads: own}}}"),
              EndsWith("format 'low_rank_keys'" + together + "scorer 'chunks'" + cuts));
}

TEST(UnequalHeads, AreFineWhereNothingTakesThemTogether) {
  const Sampled full =
      with_reference(synthetic_trace("layers: 2, q_heads: 8, kv_heads: 2, head_dim: 64, prompt_tokens: 200, decode_tokens: 4"));
  for (const std::string recipe :
       {"snapkv, budget_tokens: 64, format: {low_rank_keys: {keys: after_rope}}, allocator: pyramid",
        "snapkv, budget_tokens: 64, format: {low_rank_keys: {keys: after_rope}}, allocator: {table: {values: 0=64 1=48}}",
        "compresskv, budget_tokens: 64, allocator: head_split", "compresskv, budget_tokens: 64, trigger: every_step, allocator: pyramid"})
    EXPECT_GT(full.replayed(recipe_of("{recipe: " + recipe + "}")).mean.attention_mass, 0) << recipe;
}

}  // namespace
}  // namespace kvlab::test
