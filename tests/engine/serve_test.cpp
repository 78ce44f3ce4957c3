#include <gmock/gmock.h>

#include <array>

#include "tests/engine/serve_simulated.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

// Sixteen requests within 60 ms: some share prefixes of 32 and 64 tokens by their hashes, some have no names.
std::vector<SomeRequest> busy_requests(std::int32_t output) {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 16; ++i) {
    SomeRequest r{4.0 * i, 40 + 13 * (i % 5), output + i % 4};
    if (i % 3 != 0) {
      r.hash_tokens = 16;
      const std::int32_t chunks = r.prompt / 16;
      for (std::int32_t c = 0; c < chunks; ++c)
        r.hashes.push_back(static_cast<std::uint64_t>(c < 2 ? 100 + c : c < 4 && i % 2 == 0 ? 200 + c : 1000 * (i + 1) + c));
    }
    requests.push_back(r);
  }
  return requests;
}

// Greedy tokens of a request by itself, over the plain cache.
std::vector<std::int32_t> alone(const SomeRequest& r, std::uint64_t number) {
  const Transformer& model = *served_model().transformer();
  TraceRequest request;
  request.prompt_tokens = r.prompt, request.output_tokens = r.output, request.hash_tokens = r.hash_tokens, request.hashes = r.hashes;
  request.number = number;
  const std::vector<std::int32_t> content = request_content(request, 1, model.config().vocab_size);
  EXPECT_EQ(content.size(), static_cast<std::size_t>(r.prompt));
  KvState kv(model.config());
  std::vector<float> logits = forward_logits(model, content, kv);
  std::vector<std::int32_t> out;
  while (true) {
    out.push_back(greedy_token(logits, model.config().vocab_size));
    if (static_cast<std::int32_t>(out.size()) == r.output) return out;
    logits = forward_logits(model, std::span(out).last(1), kv);
  }
}

const std::map<std::uint64_t, std::vector<std::int32_t>>& expected_tokens() {
  static const auto tokens = [] {
    std::map<std::uint64_t, std::vector<std::int32_t>> all;
    const std::vector<SomeRequest> requests = busy_requests(20);
    for (std::size_t i = 0; i < requests.size(); ++i) all[i] = alone(requests[i], i);
    return all;
  }();
  return tokens;
}

struct Case {
  const char* scheduler;
  const char* options;
};

class ServeFull : public ::testing::TestWithParam<Case> {};

// In a batch, with chunked prompts, prefixes from the cache and preemptions, every request gets the tokens that it gets alone; its pages
// are those of its blocks.
TEST_P(ServeFull, TokensAreThoseOfTheRequestAlone) {
  const std::string scheduler = GetParam().scheduler;
  const Recipe full = load_recipe("full");
  ServeSetup setup = served_setup(full, GetParam().scheduler, GetParam().options, 22);
  std::int64_t most = 0, plans = 0;
  setup.inspect = [&](const ReplicaState& state, const StepExecutor& executor) {
    expect_explained_pages(state, executor);
    most = std::max(most, executor.pages().used_pages());
    if (scheduler != "orca") {
      EXPECT_EQ(executor.pages().capacity(), 22 * setup.memory.pages_per_block) << "a pool that grows is copied, in the middle of serving";
    }
    ++plans;
  };
  const Served served = serve_all(setup, busy_requests(20));
  EXPECT_EQ(std::tuple(served.summary.latencies.completed, served.tokens), std::tuple(16U, expected_tokens()));
  EXPECT_GT(plans, 20);
  if (scheduler == "orca") return;  // it has no blocks
  EXPECT_LE(most, 22 * setup.memory.pages_per_block);
  EXPECT_GT(served.summary.hit_tokens, 0);
  EXPECT_EQ(served.summary.preemptions > 0, scheduler != "fastgen");
}

INSTANTIATE_TEST_SUITE_P(Schedulers, ServeFull,
                         ::testing::Values(Case{"vllm_v1", "{budget_tokens: 48}"}, Case{"vllm_v1", "{budget_tokens: 512}"},
                                           Case{"sarathi", "{budget_tokens: 32, watermark_frac: 0}"}, Case{"vllm_v0", "{}"},
                                           Case{"vllm_v0", "{preemption: swap}"}, Case{"fastgen", "{}"},
                                           Case{"sglang", "{chunk_tokens: 48, clip_tokens: 1, init_ratio: 0}"},
                                           Case{"orca", "{reservation: oracle}"}),
                         [](const auto& info) { return std::string(info.param.scheduler) + std::to_string(info.index); });

struct Stop {};

// Long before the next request arrives.
TEST(Serve, IsInterruptedWhileItWaits) {
  const Recipe full = load_recipe("full");
  for (const bool stays_awake : {true, false}) {
    ServeSetup setup = served_setup(full, "vllm_v1", "{}", 40);
    setup.nominal_time = nullptr, setup.stays_awake = stays_awake;
    SomeTrace trace({{0, 40, 3}, {1e6, 40, 3}});
    Recorder sink;
    setup.each_turn = [&] {
      if (!sink.requests.empty()) throw Stop{};
    };
    EXPECT_THROW(serve(setup, trace, sink), Stop);
    EXPECT_EQ(sink.requests.size(), 1U);
  }
}

TEST(ServeContent, EqualHashesAreEqualTokens) {
  const std::vector<std::uint64_t> hashes{7, 8};
  TraceRequest a;
  a.prompt_tokens = 40, a.output_tokens = 5, a.hash_tokens = 16, a.hashes = hashes;
  a.number = 1;
  TraceRequest b = a;
  b.prompt_tokens = 50, b.number = 2;
  const auto x = request_content(a, 9, 264), y = request_content(b, 9, 264);
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + 32, y.begin()));
  EXPECT_FALSE(std::equal(x.begin() + 32, x.end(), y.begin() + 32));
  EXPECT_EQ(request_content(a, 9, 264), x);
  EXPECT_NE(request_content(a, 10, 264), x);
}

// On a clock on which steps take as long as a cost model says, the engine does what the simulator does, to the nanosecond.

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
  [[nodiscard]] ClosedLoop closed_loop() const override {
    const auto think_time = [waits = waits_](std::uint64_t session) {
      return Span(waits ? 900'000 * static_cast<std::int64_t>(session + 1) : 0);
    };
    return {.concurrency = concurrency_, .think_time = think_time};
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
