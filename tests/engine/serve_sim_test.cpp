// On a clock on which steps take as long as a cost model says, the engine does what the simulator does, to the nanosecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/engine/serve_simulated.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

std::vector<SomeRequest> mixed_requests() {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 24; ++i)
    requests.push_back(with_hashes({3.7 * i, 60 + 37 * (i % 6), 5 + 3 * (i % 7)}, i, i % 2 == 0 ? 3 : 0));
  return requests;
}

// Conversations of three turns; each prompt begins with the one before.
class Conversations final : public TraceSource {
 public:
  // `waits`: turns come some time after the turn before them, sessions some time after another's end; else at once.
  Conversations(std::int32_t concurrency, bool waits) : concurrency_(concurrency), waits_(waits) {}
  bool next(TraceRequest& r) override {
    if (at_ == 24) return false;
    const auto session = static_cast<std::int32_t>(at_ / 3), turn = static_cast<std::int32_t>(at_ % 3);
    ++at_;
    r = {};
    r.session = session, r.is_follow_up = turn > 0;
    r.arrival = Time(Span(2'300'000 * session)), r.delay = Span(turn > 0 && waits_ ? 1'700'000 * session + 40'000 * turn : 0);
    r.prompt_tokens = 50 + 60 * turn + 7 * session, r.output_tokens = 4 + (session + turn) % 5;
    for (std::int32_t c = 0; c < r.prompt_tokens / 16; ++c)
      hashes_.at(at_ - 1).push_back(static_cast<std::uint64_t>(1000 * (session + 1) + c));
    r.hash_tokens = 16, r.hashes = hashes_.at(at_ - 1);
    return true;
  }
  [[nodiscard]] bool keeps_hashes() const override { return true; }
  [[nodiscard]] std::int32_t concurrency() const override { return concurrency_; }
  [[nodiscard]] Span think_time(std::uint64_t session) const override {
    return Span(waits_ ? 900'000 * static_cast<std::int64_t>(session + 1) : 0);
  }

 private:
  std::array<std::vector<std::uint64_t>, 24> hashes_;
  std::size_t at_ = 0;
  std::int32_t concurrency_;
  bool waits_;
};

TEST(ServeAsSimulated, RecordsAreTheSimulators) {
  struct Case {
    const char *recipe, *scheduler, *options;
    std::int64_t num_blocks;
  };
  std::int64_t hit_tokens = 0;
  std::uint64_t preemptions = 0;
  for (const Case& c : {Case{"full", "vllm_v1", "{budget_tokens: 128}", 40}, Case{"full", "sarathi", "{budget_tokens: 96}", 40},
                        Case{"full", "vllm_v0", "{}", 40}, Case{"snapkv", "vllm_v1", "{}", 200}}) {
    SCOPED_TRACE(std::string(c.recipe) + " " + c.scheduler);
    const Recipe recipe = load_recipe(c.recipe, c.recipe == std::string("full") ? 0 : 48);
    const ServeSetup setup = served_setup(recipe, c.scheduler, c.options, c.num_blocks);
    const Served served = serve_as_simulated(setup, mixed_requests());
    hit_tokens += served.summary.hit_tokens;
    preemptions += served.summary.preemptions;
  }
  EXPECT_GT(hit_tokens, 0);
  EXPECT_GT(preemptions, 0U);
}

// Under memory pressure and without room on the host, cut sequences are computed anew and cut chunk by chunk on their way back.
TEST(ServeAsSimulated, CutSequencesComeBack) {
  std::vector<std::int64_t> recomputed;
  for (const char* text : {"{recipe: snapkv, budget_tokens: 48}", "{recipe: snapkv, budget_frac: 0.85}",
                           "{recipe: kvzip, budget_tokens: 48}", "{recipe: laq, budget_tokens: 48}"}) {
    SCOPED_TRACE(text);
    const Recipe recipe = recipe_of(text);
    ServeSetup setup = served_setup(recipe, "vllm_v1", "{budget_tokens: 64}", 18);
    setup.memory.host_blocks = 0;
    std::vector<SomeRequest> requests;
    for (std::int32_t r = 0; r < 10; ++r) requests.push_back({2.3 * r, 40 + 11 * (r % 6), 60 + 7 * (r % 5)});
    const Served served = serve_as_simulated(setup, requests);
    EXPECT_GE(served.summary.latencies.completed, 9U);
    recomputed.push_back(served.summary.recomputed_tokens);
  }
  EXPECT_THAT(recomputed, ::testing::Each(::testing::Gt(0)));
}

// If data decides how many tokens stay, memory is that of the bound in both hosts, from the first step on in which the policy may cut.
TEST(ServeAsSimulated, CountsThatDependOnDataStandAtTheirBound) {
  for (const char* text : {"{recipe: evict_threshold, trigger: {every_n: {steps: 1, budgeted: false, window_tokens: 16}}}",
                           "{recipe: corm}", "{recipe: simlayerkv, budget_tokens: 24, allocator: {lazy_layers: {tau: 0.2}}}"}) {
    SCOPED_TRACE(text);
    const Recipe recipe = recipe_of(text);
    const bool has_names = recipe.name == "simlayerkv";  // the others keep statistics of queries
    ServeSetup setup = served_setup(recipe, "vllm_v1", "{budget_tokens: 64}", 26);
    setup.memory.prefix_caching = has_names;
    setup.memory.host_blocks = 0;
    setup.inspect = [](const ReplicaState& state, const StepExecutor& executor) {
      expect_explained_pages(state, executor);
      EXPECT_LE(executor.pages().used_pages(), 26 * 16);
    };
    std::vector<SomeRequest> requests;
    for (std::int32_t r = 0; r < 6; ++r) requests.push_back({2.3 * r, 80 + 11 * (r % 6), 70 + 7 * (r % 5), 16, {1, 2}});
    const Served served = serve_as_simulated(setup, requests);
    EXPECT_EQ(served.summary.latencies.completed, requests.size());
    EXPECT_GT(served.summary.preemptions, 0U);
    EXPECT_EQ(served.summary.hit_tokens > 0, has_names);
  }
}

// Packed sequences leave nothing in the blocks that a preemption takes from them: both hosts compute all of it anew. Some decode when
// memory runs out.
TEST(ServeAsSimulated, SequencesAtRestLeaveNothingBehind) {
  for (const char* name : {"fp8", "infinigen"}) {
    SCOPED_TRACE(name);
    const Recipe recipe = load_recipe(name);
    ServeSetup setup = served_setup(recipe, "vllm_v1", "{budget_tokens: 64}", 36);
    setup.make_footprint = [&] { return std::make_unique<RecipeFootprint>(recipe, served_shape(served_model()), 16, KvReads::kUnpacked); };
    setup.inspect = [](const ReplicaState&, const StepExecutor& executor) { EXPECT_EQ(executor.repaired_tokens(), 0); };
    std::vector<SomeRequest> requests;
    for (std::int32_t r = 0; r < 8; ++r) requests.push_back({2.3 * r, 80 + 11 * (r % 6), 70 + 7 * (r % 5)});
    const Served served = serve_as_simulated(setup, requests);
    EXPECT_EQ(served.summary.latencies.completed, requests.size());
    EXPECT_GT(served.summary.preemptions, 0U);
    EXPECT_EQ(served.summary.hit_tokens, 0);
  }
}

// A budget below a protected chunk, or a share of a short prompt below what always stays: both hosts serve all prompts alike.
TEST(ServeAsSimulated, KeepsWhatStaysAlike) {
  for (const char* text : {"{recipe: citrus, budget_tokens: 48}", "{recipe: snapkv, budget_frac: 0.2}", "{recipe: h2o, budget_frac: 0.1}",
                           "{recipe: adakv, budget_frac: 0.2}", "{recipe: quest, budget_frac: 0.25}"}) {
    SCOPED_TRACE(text);
    const Recipe recipe = recipe_of(text);
    const ServeSetup setup = served_setup(recipe, "sarathi", "{budget_tokens: 64}", 200);
    const std::vector<SomeRequest> requests = {{0, 1, 4}, {1, 2, 4}, {2, 5, 4}, {3, 27, 4}, {4, 100, 4}};
    const Served served = serve_as_simulated(setup, requests);
    EXPECT_EQ(served.summary.latencies.completed, requests.size());
  }
}

// Requests that end after the stop rule are not counted, earlier ones are; at moments at which nothing happens, something starts or ends.
TEST(ServeAsSimulated, StopsAtTheSameMoment) {
  const Recipe full = load_recipe("full");
  ServeSetup setup = served_setup(full, "vllm_v1", "{budget_tokens: 128}", 40);
  const Served all = serve_all(setup, mixed_requests());
  std::size_t unfinished = 0;
  for (const Span stop : {Span(1), Span(20'123'457), Span(ns(all.records[5].first_token)), Span(ns(all.records[9].queued)),
                          Span(ns(all.records[12].last_token)), Span(ns(all.records[12].last_token) - 1)}) {
    SCOPED_TRACE(stop.count());
    setup.stop.after_time = stop;
    const Served served = serve_as_simulated(setup, mixed_requests());
    unfinished += served.summary.latencies.unfinished;
  }
  EXPECT_GT(unfinished, 0U);
}

// Turns that wait for the turn before them, and sessions that wait for others to end.
TEST(ServeAsSimulated, ConversationsAndClosedLoops) {
  const Recipe full = load_recipe("full");
  const ServeSetup setup = served_setup(full, "vllm_v1", "{budget_tokens: 128}", 60);
  for (const auto& [concurrency, waits] : {std::pair{0, true}, {3, true}, {0, false}, {3, false}}) {
    SCOPED_TRACE(std::to_string(concurrency) + (waits ? " waits" : ""));
    Conversations simulated_ones(concurrency, waits), served_ones(concurrency, waits);
    Recorder sink;
    const ServingSummary summary = serve(setup, served_ones, sink);
    EXPECT_EQ(sink.requests.size(), 24U);
    EXPECT_GT(summary.hit_tokens, 0);
    expect_same(simulated(setup, simulated_ones), sink.requests);
  }
}

}  // namespace
}  // namespace kvlab::test
