#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/serve_fixture.h"

namespace kvlab {
namespace {

using test::serve_all;
using test::Served;
using test::served_setup;
using test::SomeRequest;

// Prompts of 100 to 160 tokens, the first 48 shared by every other request; `gap_ms` between arrivals.
std::vector<SomeRequest> lossy_requests(double gap_ms) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 10; ++i)
    requests.push_back(test::with_hashes({gap_ms * i, 100 + 15 * (i % 5), 16 + i % 3}, i, i % 2 == 0 ? 3 : 0));
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
    test::expect_explained_pages(state, executor);
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
    setup.inspect = test::expect_explained_pages;
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

}  // namespace
}  // namespace kvlab
