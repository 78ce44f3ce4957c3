// The time of a KV policy's work in the steps of a request, by hand: up to its first token, and after it.
#include <cmath>

#include "sim/kv_cost/recipe_footprint.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

constexpr std::int64_t kOneUs = 1000;  // ns

// Keeps every token, and works on each new one: a byte per token.
class WorkPerToken final : public Footprint {
 public:
  FootprintStep step(const SeqState& seq) override { return {0, 0, 0, seq.seen_tokens + seq.new_tokens, 0, false}; }
  void charge(std::span<SeqState> batch, PolicyWork& work) override {
    for (SeqState& seq : batch) {
      seq.attended_tokens = seq.seen_tokens;
      work.ops.push_back({"work", 1, seq.new_tokens, 0, false});
    }
  }
  std::int64_t pages_at_end(std::int32_t, std::int32_t) override { return 0; }
};

// A step takes 5 us, and a time per byte of the policy's operations.
class StepAndWork final : public StubCost {
 public:
  explicit StepAndWork(Picoseconds byte, std::vector<Picoseconds> stages = {}) : byte_(byte), stages_(std::move(stages)) {}
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.add(CostPart::kLinear, Footing::kInside, Picoseconds{5'000'000});
    for (const PolicyOp& op : shape.ops) cost.add(CostPart::kPolicy, Footing::kInside, byte_ * op.bytes);
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override { return {step(shape), {}, 1 << 20}; }
  void stage_times(const StepShape&, std::vector<Picoseconds>& stages) override { stages = stages_; }
  [[nodiscard]] int num_stages() const override { return std::max(1, static_cast<int>(stages_.size())); }

 private:
  Picoseconds byte_;
  std::vector<Picoseconds> stages_;
};

SimSetup working_setup(const std::string& parameters, Picoseconds byte = Picoseconds{1'000'000}, std::vector<Picoseconds> stages = {}) {
  SimSetup setup = basic_setup("vllm_v1", parameters);
  setup.make_footprint = [] { return std::make_unique<WorkPerToken>(); };
  setup.make_cost_model = [byte, stages] { return std::make_unique<StepAndWork>(byte, stages); };
  return setup;
}

// By the number of the request.
std::vector<RequestRecord> served_by(const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  Recorder records = records_of(setup, requests);
  std::sort(records.requests.begin(), records.requests.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return records.requests;
}

std::int64_t in_prefill(const RequestRecord& r) { return to_span(r.prefill_policy).count(); }
std::int64_t in_decode(const RequestRecord& r) { return to_span(r.decode_policy).count(); }
using Work = std::pair<std::int64_t, std::int64_t>;  // in prefill and in decode
Work work_of(const RequestRecord& r) { return {in_prefill(r), in_decode(r)}; }

// Two stages of 10 us, and an eighth of a microsecond for each new token.
SimSetup pipeline() {
  return working_setup("{budget_tokens: 64}", Picoseconds{125'000}, {Picoseconds{10'000'000}, Picoseconds{10'000'000}});
}

// Chunks of 64 and 36 tokens, then 4 steps of one: 100 us and 4 us of work. The rest is 5 us per step.
TEST(PolicyTime, OfOneRequest) {
  for (const char* parameters : {"{budget_tokens: 64, async_scheduling: false}", "{budget_tokens: 64}"}) {
    const std::vector<RequestRecord> served = served_by(working_setup(parameters), {request_at(0, 100, 5)});
    const RequestRecord& r = served.at(0);
    EXPECT_EQ(work_of(r), Work(100 * kOneUs, 4 * kOneUs));
    EXPECT_EQ((r.first_token - r.scheduled).count() - in_prefill(r), 2 * 5 * kOneUs);
    EXPECT_EQ((r.last_token - r.first_token).count() - in_decode(r), 4 * 5 * kOneUs);
  }
}

// The second request comes at 113 us, and its prompt is part of the step from 116 to 172 us: 51 tokens, all of whose work both wait for.
TEST(PolicyTime, OfRequestsThatShareSteps) {
  const std::vector<RequestRecord> served =
      served_by(working_setup("{budget_tokens: 64, async_scheduling: false}"), {request_at(0, 100, 20), request_at(0.113, 50, 3)});
  EXPECT_EQ(served.at(1).first_token - kStart, Span(172 * kOneUs));
  EXPECT_EQ(work_of(served[0]), Work(100 * kOneUs, (1 + 51 + 2 + 2 + 15) * kOneUs));
  EXPECT_EQ((served[0].last_token - served[0].first_token).count() - in_decode(served[0]), 19 * 5 * kOneUs);
  EXPECT_EQ(work_of(served[1]), Work(51 * kOneUs, (2 + 2) * kOneUs));
  EXPECT_EQ((served[1].last_token - served[1].scheduled).count() - in_prefill(served[1]) - in_decode(served[1]), 3 * 5 * kOneUs);
}

// Two stages of 10 us: the chunks run from 0 to 20 us and from 10 to 30 us. Half of the 8 us of work of the second one is at the same time
// as the first.
TEST(PolicyTime, ChunksOfAPromptInAPipelineCountEachInstantOnce) {
  const std::vector<RequestRecord> served = served_by(pipeline(), {request_at(0, 128, 1)});
  EXPECT_EQ((served.at(0).first_token - served[0].scheduled).count(), 30 * kOneUs);
  EXPECT_EQ(in_prefill(served[0]), (8 + 4) * kOneUs);
}

// Steps of two requests alternate on the two stages: from 0, 20 and 40 us, and from 10, 30 and 50 us, each for 20 us. Half of each step is
// beside one of the other request. Each request waits for its own steps alone, with 8 us, 1/8 us and 1/8 us of work.
TEST(PolicyTime, StepsOfOtherRequestsInAPipelineTakeNothingAway) {
  const std::vector<RequestRecord> served = served_by(pipeline(), {request_at(0, 64, 3), request_at(0, 64, 3)});
  for (std::int64_t i = 0; i < 2; ++i) {
    const RequestRecord& r = served.at(static_cast<std::size_t>(i));
    EXPECT_EQ((r.first_token - kStart).count(), (20 + 10 * i) * kOneUs);
    EXPECT_EQ((r.last_token - kStart).count(), (60 + 10 * i) * kOneUs);
    EXPECT_EQ(work_of(r), Work(8 * kOneUs, 2 * kOneUs / 8));
  }
}

// The step from 20 to 40 us has the second token of one request and the last 63 tokens of the other one's prompt, whose first 64 are
// computed from 10 to 30 us. Its 8 us of work count whole for the first request, and half for the second.
TEST(PolicyTime, AStepOfAPipelineCountsByRequest) {
  const std::vector<RequestRecord> served = served_by(pipeline(), {request_at(0, 64, 2), request_at(0, 127, 1)});
  EXPECT_EQ((served.at(0).last_token - kStart).count(), 40 * kOneUs);
  EXPECT_EQ((served.at(1).first_token - kStart).count(), 40 * kOneUs);
  EXPECT_EQ(work_of(served[0]), Work(8 * kOneUs, 8 * kOneUs));
  EXPECT_EQ(in_prefill(served[1]), (8 + 4) * kOneUs);
}

// Ranks that step together: each request waits for the slower rank, and its own rank's work is the policy's.
TEST(PolicyTime, IsThatOfTheRequestsOwnRank) {
  SimSetup setup = working_setup("{budget_tokens: 64, async_scheduling: false}");
  setup.ranks = 2;
  const std::vector<RequestRecord> served = served_by(setup, {request_at(0, 64, 1), request_at(0, 32, 1)});
  EXPECT_NE(served.at(0).replica, served.at(1).replica);
  EXPECT_EQ(served[0].last_token, served[1].last_token);
  EXPECT_EQ((served[0].last_token - kStart).count(), 69 * kOneUs);
  EXPECT_EQ(in_prefill(served[0]), 64 * kOneUs);
  EXPECT_EQ(in_prefill(served[1]), 32 * kOneUs);
}

// It goes along with the request to the replica that decodes it.
TEST(PolicyTime, OfPrefillAndDecodeReplicas) {
  const SimSetup setup =
      pools_setup(1, 1, "least_outstanding", working_setup("{budget_tokens: 64, async_scheduling: false}", Picoseconds{1'000'000}));
  const std::vector<RequestRecord> served = served_by(setup, {request_at(0, 100, 5)});
  ASSERT_EQ(served.at(0).outcome, Outcome::kCompleted);
  EXPECT_EQ(served[0].replica, 1U);
  EXPECT_EQ(work_of(served[0]), Work(100 * kOneUs, 4 * kOneUs));
}

// Without work there is none, and a request that is cut off has that of its steps so far.
TEST(PolicyTime, OfUnfinishedRequests) {
  SimSetup setup = working_setup("{budget_tokens: 64, async_scheduling: false}");
  setup.stop.after_time = Span(113 * kOneUs);
  const std::vector<RequestRecord> cut = served_by(setup, {request_at(0, 100, 5), request_at(0.1, 100, 5)});
  EXPECT_EQ(cut.at(0).outcome, Outcome::kUnfinished);
  EXPECT_EQ(work_of(cut[0]), Work(100 * kOneUs, 0));
  EXPECT_EQ(in_prefill(cut.at(1)), 0);
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  for (const RequestRecord& r : served_by(setup, {request_at(0, 100, 5)})) EXPECT_EQ(in_prefill(r) + in_decode(r), 0);
}

// Keeps 144 tokens where it has a use for a budget.
void use_recipe(const std::string& name, SimSetup& setup) {
  const Recipe own = load_recipe(name);
  const Recipe recipe = own.has_budget || own.selector != "all" ? load_recipe(name, 144) : own;
  setup.make_footprint = [recipe] { return std::make_unique<RecipeFootprint>(recipe, ModelShape{4, 8, 2, 64, 128}, 16); };
}

Served worked_run(const std::string& recipe_name, const std::string& parameters, bool skips) {
  SimSetup setup = working_setup(parameters, Picoseconds{17});
  use_recipe(recipe_name, setup);
  setup.memory.num_blocks = 120;
  setup.max_model_len = 1000;
  setup.fast_forward = skips;
  return serve(setup, random_workload(7, 40, 0.3, 250).requests);
}

// Policies with work in decode steps, of which many are carried out at once; little memory, so that requests are preempted.
TEST(PolicyTime, OfSkippedStepsIsThatOfSingleSteps) {
  std::uint64_t preemptions = 0;
  for (const std::string name : {"h2o", "quest", "kivi2"}) {
    for (const char* parameters :
         {"{budget_tokens: 256, max_num_seqs: 8}", "{budget_tokens: 256, max_num_seqs: 8, async_scheduling: false}"}) {
      const Served stepped = worked_run(name, parameters, false), skipped = worked_run(name, parameters, true);
      EXPECT_LT(skipped.summary.events, stepped.summary.events) << name;
      preemptions += stepped.summary.preemptions;
      const std::vector<RequestRecord>&all = stepped.records.requests, &others = skipped.records.requests;
      ASSERT_EQ(all.size(), others.size());
      std::int64_t decode = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const RequestRecord& one = all[i];
        EXPECT_EQ(std::pair(one.prefill_policy, one.decode_policy), std::pair(others[i].prefill_policy, others[i].decode_policy))
            << name << " request " << one.number;
        if (one.outcome != Outcome::kCompleted) continue;
        EXPECT_LE(in_prefill(one), (one.first_token - one.scheduled).count());
        EXPECT_LE(in_decode(one), (one.last_token - one.first_token).count());
        decode += in_decode(one);
      }
      EXPECT_GT(decode, 0) << name;
    }
  }
  EXPECT_GT(preemptions, 0U);
}

// Decode steps of KV policies that are carried out many at once give the very records of single steps.

// Linear prices, and operations of a policy along a curve: their times run along no line.
class CurvedOps final : public StubCost {
 public:
  CurvedOps(const LinearPrices& prices, std::int64_t* asked) : linear_(prices), asked_(asked) {}
  StepCost step(const StepShape& shape) override {
    StepCost cost = linear_.step(shape);
    add_ops(shape, cost);
    if (asked_ != nullptr) ++*asked_;
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override {
    DecodeSpan span = linear_.decode_span(shape);
    add_ops(shape, span.base);
    return span;
  }
  [[nodiscard]] Picoseconds host_time(const StepShape& shape) const override { return linear_.host_time(shape); }
  double prefill_seconds(std::int32_t tokens, std::int32_t kv_before) override { return linear_.prefill_seconds(tokens, kv_before); }

 private:
  static void add_ops(const StepShape& shape, StepCost& cost) {
    for (const PolicyOp& op : shape.ops) {
      const Picoseconds time{op.launches * 1000 + std::llround(97 * std::sqrt(static_cast<double>(op.bytes + op.flops)))};
      cost.add(CostPart::kPolicy, Footing::kRoofline, time);
      cost.flops += op.flops;
      cost.bytes += op.bytes;
    }
  }
  LinearCost linear_;
  std::int64_t* asked_;
};

class PolicyAhead : public ::testing::TestWithParam<std::string> {};

TEST_P(PolicyAhead, ChangesNothing) {
  const std::vector<std::pair<std::string, std::string>> schedulers = {{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                                       {"sarathi", "{budget_tokens: 96, max_num_seqs: 12}"},
                                                                       {"vllm_v0", "{max_num_seqs: 12, preemption: swap}"}};
  const std::uint64_t seeds = full_run() ? 12 : 1;
  for (const auto& [scheduler, parameters] : schedulers) {
    for (const bool caches : {false, true}) {
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, 98, step, caches ? 1U : 0U}; };
        SimSetup setup = basic_setup(scheduler, parameters);
        use_recipe(GetParam(), setup);
        setup.memory.prefix_caching = caches;
        setup.memory.num_blocks = static_cast<std::int64_t>(80 + draw(0).below(200));
        setup.memory.host_blocks = 40 * static_cast<std::int64_t>(draw(1).below(3));
        setup.max_model_len = 1000;
        LinearPrices prices;
        prices.host = seed % 2 == 0 ? Picoseconds{} : Picoseconds{static_cast<std::int64_t>(draw(2).below(9'000'000))};
        prices.cell = static_cast<std::int64_t>(100 + draw(3).below(5000));
        setup.make_cost_model = [prices] { return std::make_unique<CurvedOps>(prices, nullptr); };
        setup.timeline_interval = Span(static_cast<std::int64_t>(1'000'000 + draw(4).below(20'000'000)));
        const Workload w = random_workload(seed, 24, 0.05 + 3 * draw(5).uniform(), draw(6).below(2) == 0 ? 60 : 250);
        ASSERT_EQ(run(setup, w, false), run(setup, w, true)) << scheduler << (caches ? " with" : " without") << " caching, seed " << seed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, PolicyAhead,
                         ::testing::Values("snapkv", "h2o", "quest", "kivi2", "shadowkv", "streaming", "sliding_window", "tova",
                                           "pyramidkv", "adakv", "expected_attention", "knorm", "chunkkv", "keydiff", "paged_eviction",
                                           "lazy_eviction", "lagkv", "scissorhands", "duo", "scope_slide", "fp8", "flexgen_int4",
                                           "mustafar50", "gear", "zipcache", "snapkv_kivi2", "snapkv_d2o", "h2o_offload", "infinigen",
                                           "retrieval_attention", "recycled_attention", "minicache", "razor_compensation", "twilight",
                                           "pqcache", "rocketkv", "spe_cache", "token_select", "mpcache_dynamic", "r_kv", "turboquant4"),
                         [](const auto& info) { return info.param; });

// One request alone: its decode steps are priced a few at a time.
TEST(PolicyAheadOf, StepsAreSkipped) {
  for (const char* name : {"snapkv", "h2o", "streaming"}) {
    Workload w;
    w.requests.push_back(request_at(0, 400, 500));
    std::int64_t asked[2] = {0, 0};
    for (const bool skips : {false, true}) {
      SimSetup setup = basic_setup("vllm_v1", "{}");
      use_recipe(name, setup);
      setup.timeline_interval = Span(1'000'000'000);
      setup.make_cost_model = [count = &asked[skips ? 1 : 0]] { return std::make_unique<CurvedOps>(LinearPrices{}, count); };
      run(setup, w, skips);
    }
    EXPECT_GE(asked[0], 500) << name;
    EXPECT_LE(asked[1], 60) << name;
  }
}

// KV policies whose rows differ in length, in pools: a sequence takes its rows to another replica, which counts patterns of its own.

constexpr ModelShape kPoolsModel{12, 4, 2, 32, 64};

SeqState after_steps(RecipeFootprint& footprint, std::int32_t prompt, std::int32_t decoded) {
  SeqState seq{0, prompt};
  for (std::int32_t next = prompt; decoded >= 0; --decoded, next = 1) seq = footprint.step(seq.taking(next)).after(seq.taking(next));
  return seq;
}

TEST(PoolsPolicy, PatternsCarryOverToAnotherFootprint) {
  for (const char* text :
       {"{recipe: d2o_values, budget_frac: 0.3}", "{recipe: pyramidkv, budget_frac: 0.3}", "{recipe: windowkv, budget_frac: 0.5}"}) {
    const Recipe recipe = recipe_of(text);
    RecipeFootprint from(recipe, kPoolsModel, 16), to(recipe, kPoolsModel, 16);
    for (const std::int32_t prompt : {610, 830, 1200}) after_steps(to, prompt, 3);
    const SeqState seq = after_steps(from, 450, 2);
    ASSERT_GT(seq.pattern, 0) << text;
    SeqState moved = seq;
    moved.pattern = to.pattern_of(from.rows_of(seq.pattern));
    EXPECT_NE(moved.pattern, seq.pattern) << text;
    EXPECT_EQ(to.shape_of(moved.taking(1)).held, from.shape_of(seq.taking(1)).held) << text;
    EXPECT_EQ(to.pattern_of(from.rows_of(0)), 0);
  }
}

// One decode replica gets sequences of several prefill replicas, each of which counts patterns from 1 on.
TEST(PoolsPolicy, DecodeReplicasTakeRowsOfAllPrefillReplicas) {
  for (const char* text : {"{recipe: d2o_values, budget_frac: 0.1}", "{recipe: pyramidkv, budget_frac: 0.3}"}) {
    SimSetup setup = pools_setup(3, 1, "round_robin");
    for (PoolSetup& pool : setup.pools)
      pool.make_footprint = [recipe = recipe_of(text)] { return std::make_unique<RecipeFootprint>(recipe, kPoolsModel, 16); };
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 24; ++i) requests.push_back(request_at(i, 12 + 7 * i % 60, 20));
    EXPECT_EQ(records_of(setup, requests).requests.size(), requests.size()) << text;
  }
}

}  // namespace
}  // namespace kvlab::testing
