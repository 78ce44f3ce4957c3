// Compares the memory that the engine holds under every recipe with the bound that the recipe declares.
#include "tests/held_bounds.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/error.h"
#include "engine/cache/policy_cache.h"
#include "engine/model/record.h"
#include "tests/engine/cache_steps.h"
#include "tests/engine/small_model.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kBoundDecoded = 3, kLongBound = 4000;

const Transformer& tiny_model() {
  static const std::unique_ptr<EngineModel> model = [] {
    ModelConfig c = small_config(4);
    c.q_heads = 2, c.kv_heads = 1, c.vocab_size = 256, c.max_tokens = 2 * kLongBound;
    return make_random_model("cpu", c);
  }();
  return *model->transformer();
}

std::vector<std::int32_t> bound_ids(std::int32_t n) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back((i * i * 7 + i * 13 + i / 9) % 256);
  return ids;
}

// All that recipes observe of a prompt; `pass`: an extra pass, "" for none.
const PromptTensors& bound_prompt(std::int32_t tokens, const std::string& pass) {
  static std::map<std::pair<std::int32_t, std::string>, PromptTensors> made;
  const auto [at, is_new] = made.try_emplace({tokens, pass});
  if (is_new) {
    Needs all;
    all.step_queries = all.pre_rope_queries = all.pre_rope_keys = all.hidden = true;
    std::vector<std::string> passes;
    if (!pass.empty()) passes.push_back(pass);
    RecordOptions options;
    options.hidden = true;
    at->second = run_prompt(tiny_model(), bound_ids(tokens), all, passes, options);
  }
  return at->second;
}

std::int64_t tokens_in_rows(const EngineSequence& s) {
  std::int64_t held = 0;
  for (const KvStore::Sequence& layer : s.rows) held = std::accumulate(layer.len.begin(), layer.len.end(), held);
  return held;
}

// False: the recipe refuses the case before anything runs.
bool expect_held_bounds(const Recipe& recipe, std::int32_t prompt) {
  std::unique_ptr<PolicyCache> cache;
  EngineSequence s = sequence_of(0, bound_ids(prompt + kBoundDecoded), prompt);
  try {
    cache = std::make_unique<PolicyCache>(tiny_model(), recipe, PolicyCache::Options{});
    s.question_begin = cache->policy().needs().assumed_question(prompt);
    cache->start(s);
  } catch (const InputError&) {
    return false;
  }
  for (std::int32_t decoded = 0; decoded <= kBoundDecoded; ++decoded) {
    const SeqStep step{0, s.seen_tokens, decoded == 0 ? prompt : 1, prompt, s.question_begin};
    if (decoded == 0 && recipe.computes_whole_prompts())
      cache->adopt(s, bound_prompt(prompt, cache->policy().needs().pass));
    else
      run_step(*cache, {{&s, step.new_tokens}}, tiny_model());
    EXPECT_LE(tokens_in_rows(s), cache->policy().most_tokens(step)) << "after " << s.seen_tokens << " tokens";
  }
  cache->release(s);
  return true;
}

class EngineHeldBounds : public testing::TestWithParam<std::string> {};

// Prompts of 4,000 tokens take a second where attention is observed: every fourth recipe has one of them, with one of its budgets.
TEST_P(EngineHeldBounds, RowsHoldNoMoreThanTheRecipeSays) {
  if (left_out_of_bounds(GetParam())) GTEST_SKIP() << kLeftOut;
  const std::size_t index = recipe_index(GetParam());
  const auto cases = bound_cases(GetParam());
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const std::int32_t prompt : kBoundPrompts) {
      const bool is_picked = index % 4 == 0 && index / 4 % cases.size() == i;
      if (prompt == kLongBound && !full_run() && !is_picked) continue;
      SCOPED_TRACE(GetParam() + " " + cases[i].first + ", prompt of " + std::to_string(prompt));
      if (!expect_held_bounds(cases[i].second, prompt) || HasFailure()) break;
    }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EngineHeldBounds, testing::ValuesIn(recipes_in({"engine"})), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
