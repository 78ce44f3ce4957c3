#include "tests/engine/serve_fixture.h"
#include "tests/engine/stored_recipes.h"

namespace kvlab::test {
namespace {

// Prompts of 100 to 160 tokens, the first 48 shared by every other request; `gap_ms` between arrivals.
std::vector<SomeRequest> lossy_requests(double gap_ms) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 10; ++i)
    requests.push_back(with_hashes({gap_ms * i, 100 + 15 * (i % 5), 16 + i % 3}, i, i % 2 == 0 ? 3 : 0));
  return requests;
}

// The same requests one after the other, with memory for all and nothing shared.
Served one_by_one(const Recipe& recipe) {
  ServeSetup setup = served_setup(recipe, "vllm_v1", "{}", 400);
  setup.memory.prefix_caching = false;
  return serve_all(setup, lossy_requests(1000));
}

// Prompts in one piece, blocks with names that are found again while their first owner was cut, swaps under memory pressure: the tokens
// are those of the request alone, and no page is lost.
class ServeLossy : public ::testing::TestWithParam<const char*> {};

TEST_P(ServeLossy, TokensAreThoseOfTheRequestAlone) {
  const Recipe recipe = load_recipe(GetParam(), 40);
  ServeSetup setup = served_setup(recipe, "vllm_v1", "{}", 26);
  setup.inspect = [](const ReplicaState& state, const StepExecutor& executor) {
    expect_explained_pages(state, executor);
    EXPECT_LE(executor.pages().used_pages(), 26 * 16);
  };
  const Served together = serve_all(setup, lossy_requests(2));
  EXPECT_EQ(together.summary.latencies.completed, 10U);
  EXPECT_EQ(together.summary.hit_tokens > 0, recipe.name != "h2o") << "requests share statistics of queries";
  EXPECT_EQ(together.tokens, one_by_one(recipe).tokens);
  if (GetParam() == std::string("snapkv")) {
    EXPECT_GT(together.summary.swaps, 0U);
  }
}

// Merged layers are rewritten in place: no other request may find them.
TEST(ServeMerged, LayersAreNotFound) {
  const Recipe minicache = load_recipe("minicache");
  const Served together = serve_all(served_setup(minicache, "vllm_v1", "{}", 400), lossy_requests(2));
  EXPECT_EQ(std::tuple(together.summary.hit_tokens, together.tokens), std::tuple(0, one_by_one(minicache).tokens));
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServeLossy, ::testing::Values("snapkv", "h2o", "streaming"),
                         [](const auto& info) { return std::string(info.param); });

// Formats and selectors keep every token; their blocks have names of their own policy.
TEST(ServeFormats, RunToTheEndAndLosePagesNowhere) {
  for (const char* name : {"kivi4", "quest"}) {
    const Recipe recipe = load_recipe(name);
    ServeSetup setup = served_setup(recipe, "sarathi", "{budget_tokens: 64}", 400);
    setup.inspect = expect_explained_pages;
    const Served served = serve_all(setup, lossy_requests(2));
    EXPECT_EQ(served.summary.latencies.completed, 10U) << name;
    for (const auto& [number, tokens] : served.tokens) EXPECT_EQ(tokens.size(), 16U + number % 3) << name;
  }
}

TEST(Serve, RefusesWhatTheEngineDoesNotRun) {
  const Recipe full = load_recipe("full");
  EXPECT_THROW(serve_all(served_setup(full, "static", "{}", 4000), lossy_requests(2)), InputError);
}

// In real time on a thread of its own: records tell a plausible story.
TEST(Serve, RunsInRealTime) {
  const Recipe full = load_recipe("full");
  for (const char* scheduler : {"vllm_v1", "sarathi"}) {
    ServeSetup setup = served_setup(full, scheduler, "{}", 100);
    setup.nominal_time = nullptr;
    std::int64_t steps = 0;
    Picoseconds last_end;
    setup.step_done = [&](const InFlightStep& step) {
      EXPECT_LE(last_end, step.start);
      EXPECT_LT(step.start, step.end);
      last_end = step.end;
      ++steps;
    };
    std::vector<SomeRequest> requests = lossy_requests(1);
    requests.resize(4);
    const Served served = serve_all(setup, requests);
    EXPECT_EQ(served.records.size(), 4U);
    EXPECT_EQ(static_cast<std::uint64_t>(steps), served.summary.steps);
    for (const RequestRecord& r : served.records) {
      EXPECT_LE(r.arrival, r.queued);
      EXPECT_LE(r.queued, r.scheduled);
      EXPECT_LT(r.scheduled, r.first_token);
      EXPECT_LT(r.first_token, r.last_token);
    }
    EXPECT_GT(served.summary.busy_frac, 0);
    EXPECT_LE(served.summary.busy_frac, 1);
  }
}

// Prefixes that several requests have in common: policies decide as if each had computed its own.

// Prompts of 120 to 170 tokens, the first 112 the same; the first is done before the others come.
std::vector<SomeRequest> alike_requests() {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 6; ++i) requests.push_back(with_hashes({i == 0 ? 0 : 500 + 30.0 * i, 120 + 10 * i, 24}, i, 7));
  return requests;
}

// Small enough to cut and to choose among so few tokens.
Recipe shared_recipe(const std::string& name) {
  if (lies_lower(load_recipe(name), served_shape(small_model()))) return small_tiered(name);
  const std::map<std::string, std::int32_t> least{
      {"duo", 80}, {"layer_table", 64}, {"lazy_eviction", 150}, {"citrus", 200}, {"triattention", 150}};
  const std::int32_t budget = least.contains(name) ? least.at(name) : 48;
  return load_recipe(name, load_recipe(name).has_budget ? budget : 0);
}

class ServeShared : public testing::TestWithParam<std::string> {};

TEST_P(ServeShared, PrefixesOfOthersChangeNoToken) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = shared_recipe(GetParam());
  // If little of a token is on the GPU, blocks are small, and data that is always there fills many.
  const std::int64_t blocks = GetParam().starts_with("retrieval_attention") ? 60000 : 4000;
  ServeSetup setup = serve_setup(small_model(), recipe, "vllm_v1", "{}", blocks);
  const Served shared = serve_all(setup, alike_requests());
  EXPECT_EQ(shared.summary.latencies.completed, 6U);
  const KvPolicy policy(recipe, served_shape(small_model()));
  EXPECT_EQ(shared.summary.hit_tokens > 0, policy.shares_prefixes() && policy.fresh_tokens() <= 170 - 16);  // a block of the longest prompt
  setup.memory.prefix_caching = false;
  const Served alone = serve_all(setup, alike_requests());
  EXPECT_EQ(alone.summary.hit_tokens, 0);
  EXPECT_EQ(shared.tokens, alone.tokens);
}

// Recipes that store tokens as the model computes them; of others, others find what was decoded.
std::vector<std::string> lossless_recipes() {
  std::vector<std::string> names = recipes_in({"engine", "cost"});
  std::erase_if(names, [](const std::string& name) { return is_packed(shipped_recipe(name)); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServeShared, testing::ValuesIn(lossless_recipes()), [](const auto& info) { return info.param; });

// Sequences packed between steps of a server: the same tokens as with blocks of decoded KV, in the bytes that are counted.

// Prompts of 90 to 190 tokens of which no two begin alike; with prefix_caching their blocks have names.
std::vector<SomeRequest> unlike_requests(double gap_ms) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 8; ++i) requests.push_back(with_hashes({gap_ms * i, 90 + 25 * (i % 5), 40 + i % 3}, i));
  return requests;
}

// Small enough to choose among, and to encode some, of a few hundred tokens.
Recipe small_recipe(const std::string& name) {
  if (name == "snapkv_kivi2") return recipe_of("{recipe: snapkv_kivi2, budget_tokens: 64, format: {kivi: {bits: 2, residual_tokens: 32}}}");
  return lies_lower(load_recipe(name), served_shape(served_model())) ? small_tiered(name)
                                                                     : load_recipe(name, load_recipe(name).has_budget ? 64 : 0);
}

class ServeAtRest : public testing::TestWithParam<const char*> {};

TEST_P(ServeAtRest, TokensAreThoseOfDecodedBlocksInTheBytesThatAreCounted) {
  const std::string name = GetParam();
  const Recipe recipe = small_recipe(name);
  ServeSetup setup = served_setup(recipe, "sarathi", "{budget_tokens: 64}", 400);
  const Served decoded = serve_all(setup, unlike_requests(20));
  const bool leaves_blocks = recipe.prefix_reuse == Recipe::PrefixReuse::kFullCopy;
  const bool finds_nothing = !KvPolicy(recipe, served_shape(served_model())).shares_prefixes();  // and so rests from the start
  EXPECT_EQ(decoded.summary.remark.starts_with("8 of 8 sequences lay decoded"), !leaves_blocks && !finds_nothing) << decoded.summary.remark;

  setup.memory.prefix_caching = false;
  const bool on_tiers = lies_lower(recipe, served_shape(served_model()));
  const double block_bytes = recipe_pages(recipe, served_shape(served_model()), 16).token_bytes * 16;
  std::int64_t plans_at_rest = 0, most_host = 0;
  setup.inspect = [&](const ReplicaState& state, const StepExecutor& executor) {
    EXPECT_EQ(executor.pages().used_pages(), executor.explained_pages());
    EXPECT_EQ(executor.block_pages(), 0) << "nobody finds them";
    const PolicyCache::HeldBytes held = executor.held();
    most_host = std::max(most_host, held.host);
    if (on_tiers || executor.pages().used_pages() > 0 || held.kv == 0) return;  // a prompt is on its way, or nothing is
    ++plans_at_rest;
    const double counted = block_bytes * static_cast<double>(state.used_blocks());
    EXPECT_LE(static_cast<double>(held.kv), 1.05 * counted);
  };
  const Served at_rest = serve_all(setup, unlike_requests(20));
  EXPECT_EQ(std::tuple(at_rest.summary.latencies.completed, at_rest.tokens, at_rest.summary.remark), std::tuple(8U, decoded.tokens, ""));
  EXPECT_EQ(plans_at_rest > 20, !on_tiers);
  EXPECT_EQ(most_host > 0, on_tiers);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ServeAtRest,
                         testing::Values("kivi2", "fp8", "gear", "mustafar50", "qserve_kv4", "mikv", "snapkv_kivi2", "infinigen",
                                         "shadowkv", "kcache", "leoam"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ServeSwapped, SequencesAtRestComeBackAsTheyWere) {
  struct Case {
    const char* recipe;
    std::int64_t num_blocks;
  };
  for (const Case& c : {Case{"kivi2", 160}, Case{"gear", 60}, Case{"snapkv_kivi2", 60}, Case{"infinigen", 52}}) {
    SCOPED_TRACE(c.recipe);
    const Recipe recipe = small_recipe(c.recipe);
    ServeSetup setup = served_setup(recipe, "vllm_v0", "{preemption: swap}", 400);
    setup.memory.prefix_caching = false;
    const Served calm = serve_all(setup, unlike_requests(1000));
    setup.memory.num_blocks = c.num_blocks;
    setup.inspect = expect_explained_pages;
    const Served pressed = serve_all(setup, unlike_requests(1));
    EXPECT_GT(pressed.summary.swaps, 0U);
    EXPECT_EQ(pressed.tokens, calm.tokens);
  }
}

}  // namespace
}  // namespace kvlab::test
