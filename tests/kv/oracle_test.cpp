// The oracle, which knows the queries to come: a bound for scorers.
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

struct Sampled {
  AttentionTrace trace;
  AttentionReference reference;
};

const std::vector<Sampled>& samples() {
  static const std::vector<Sampled> all = [] {
    std::vector<Sampled> some;
    for (const SampleShape& shape : {SampleShape{2, 4, 2, 32, 200, 12, 0, 1}, SampleShape{2, 4, 2, 32, 200, 12, 70, 2},
                                     SampleShape{1, 8, 1, 64, 260, 9, 0, 3}, SampleShape{3, 3, 3, 48, 130, 16, 0, 4}}) {
      Sampled& s = some.emplace_back();
      s.trace = sample(shape);
      for (const char* pass : {"reconstruct", "reconstruct_gradient", "lookahead", "repeat"}) add_pass(s.trace, pass);
      s.reference = full_attention(s.trace);
    }
    return some;
  }();
  return all;
}

double mass(const Sampled& s, const std::string& name, std::int32_t budget) {
  return replay(s.trace, s.reference, load_recipe(name, budget)).mean.attention_mass;
}

// Recipes that once, when the prompt is complete, keep the best tokens of each row.
std::vector<std::string> prefill_end_scorers() {
  std::vector<std::string> names;
  for (const std::string& name : recipe_names()) {
    const Recipe r = load_recipe(name);
    if (r.trigger == "prefill_end" && r.allocator == "uniform" && r.disposal == "drop" && r.format == "native" && r.selector == "all" &&
        r.has_budget)
      names.push_back(name);
  }
  return names;
}

TEST(Oracle, AtEqualBudgetNoScorerKeepsMoreAttention) {
  const std::vector<std::string> names = prefill_end_scorers();
  EXPECT_GT(names.size(), 25U);
  for (const Sampled& s : samples())
    for (const std::int32_t budget : {40, 80, 120}) {
      const double best = mass(s, "oracle", budget);
      for (const std::string& name : names)
        EXPECT_LE(mass(s, name, budget), best + 1e-6) << name << ", " << budget << " tokens, sample of " << s.trace.prompt_tokens;
    }
}

// Nested sets of tokens: scores that do not depend on the budget.
TEST(TopKScorers, LargerBudgetsKeepNoLessAttention) {
  for (const char* name : {"oracle", "snapkv", "knorm", "keydiff", "tova", "observed_attention", "expected_attention", "leverage",
                           "noncausal_attention", "streaming", "kvpress_knorm", "kvpress_snapkv"})
    for (const Sampled& s : samples()) {
      double before = 0;
      for (const std::int32_t budget : {34, 50, 77, 110, 128, 129, 190, 260}) {
        const Recipe recipe = recipe_of(fmt::format("{{recipe: {}, trigger: prefill_end, budget_tokens: {}}}", name, budget));
        const double kept = replay(s.trace, s.reference, recipe).mean.attention_mass;
        EXPECT_GE(kept, before - 1e-6) << name << " at " << budget;
        before = kept;
      }
    }
}

}  // namespace
}  // namespace kvlab::test
