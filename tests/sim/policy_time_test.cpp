// The time of a KV policy's work in the steps of a request, by hand: up to its first token, and after it.
#include <gtest/gtest.h>

#include "policies/kv/recipe_footprint.h"
#include "tests/sim/pools_support.h"

namespace kvlab::testing {
namespace {

constexpr std::int64_t kUs = 1000;  // ns

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
class StepAndWork final : public CostModel {
 public:
  explicit StepAndWork(Picoseconds byte, std::vector<Picoseconds> stages = {}) : byte_(byte), stages_(std::move(stages)) {}
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.row(CostPart::kLinear)[0] = Picoseconds{5'000'000};
    for (const PolicyOp& op : shape.ops) cost.row(CostPart::kPolicy)[0] += byte_ * op.bytes;
    cost.total = cost.of(CostPart::kLinear) + cost.of(CostPart::kPolicy);
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override { return {step(shape), {}, 1 << 20}; }
  [[nodiscard]] Picoseconds host_time(const StepShape&) const override { return {}; }
  void stage_times(const StepShape&, std::vector<Picoseconds>& stages) override { stages = stages_; }
  [[nodiscard]] int num_stages() const override { return std::max(1, static_cast<int>(stages_.size())); }
  [[nodiscard]] int num_layers() const override { return 4; }
  double prefill_seconds(std::int32_t, std::int32_t) override { return 1e-6; }
  [[nodiscard]] double peak_flops() const override { return 1e12; }
  [[nodiscard]] double peak_bytes_per_s() const override { return 1e12; }

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
  Recorder records;
  run_into(records, setup, requests);
  std::sort(records.requests.begin(), records.requests.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return records.requests;
}

std::int64_t in_prefill(const RequestRecord& r) { return to_span(r.prefill_policy).count(); }
std::int64_t in_decode(const RequestRecord& r) { return to_span(r.decode_policy).count(); }

// Chunks of 64 and 36 tokens, then 4 steps of one: 100 us and 4 us of work. The rest is 5 us per step.
TEST(PolicyTime, OfOneRequest) {
  for (const char* parameters : {"{budget_tokens: 64, async_scheduling: false}", "{budget_tokens: 64}"}) {
    const std::vector<RequestRecord> served = served_by(working_setup(parameters), {request_at(0, 100, 5)});
    const RequestRecord& r = served.at(0);
    EXPECT_EQ(in_prefill(r), 100 * kUs);
    EXPECT_EQ(in_decode(r), 4 * kUs);
    EXPECT_EQ((r.first_token - r.scheduled).count() - in_prefill(r), 2 * 5 * kUs);
    EXPECT_EQ((r.last_token - r.first_token).count() - in_decode(r), 4 * 5 * kUs);
  }
}

// The second request comes at 113 us, and its prompt is part of the step from 116 to 172 us: 51 tokens, all of whose work both wait for.
TEST(PolicyTime, OfRequestsThatShareSteps) {
  const std::vector<RequestRecord> served =
      served_by(working_setup("{budget_tokens: 64, async_scheduling: false}"), {request_at(0, 100, 20), request_at(0.113, 50, 3)});
  EXPECT_EQ(served.at(1).first_token - kStart, Span(172 * kUs));
  EXPECT_EQ(in_prefill(served[0]), 100 * kUs);
  EXPECT_EQ(in_decode(served[0]), (1 + 51 + 2 + 2 + 15) * kUs);
  EXPECT_EQ((served[0].last_token - served[0].first_token).count() - in_decode(served[0]), 19 * 5 * kUs);
  EXPECT_EQ(in_prefill(served[1]), 51 * kUs);
  EXPECT_EQ(in_decode(served[1]), (2 + 2) * kUs);
  EXPECT_EQ((served[1].last_token - served[1].scheduled).count() - in_prefill(served[1]) - in_decode(served[1]), 3 * 5 * kUs);
}

// Two stages of 10 us: the chunks run from 0 to 20 us and from 10 to 30 us. Of the second one's 8 us of work half is beside the first.
TEST(PolicyTime, StepsOfAPipelineCountEachInstantOnce) {
  const SimSetup setup = working_setup("{budget_tokens: 64}", Picoseconds{125'000}, {Picoseconds{10'000'000}, Picoseconds{10'000'000}});
  const std::vector<RequestRecord> served = served_by(setup, {request_at(0, 128, 1)});
  EXPECT_EQ((served.at(0).first_token - served[0].scheduled).count(), 30 * kUs);
  EXPECT_EQ(in_prefill(served[0]), (8 + 4) * kUs);
}

// Ranks that step together: each request waits for the slower rank, and its own rank's work is the policy's.
TEST(PolicyTime, IsThatOfTheRequestsOwnRank) {
  SimSetup setup = working_setup("{budget_tokens: 64, async_scheduling: false}");
  setup.ranks = 2;
  const std::vector<RequestRecord> served = served_by(setup, {request_at(0, 64, 1), request_at(0, 32, 1)});
  EXPECT_NE(served.at(0).replica, served.at(1).replica);
  EXPECT_EQ(served[0].last_token, served[1].last_token);
  EXPECT_EQ((served[0].last_token - kStart).count(), 69 * kUs);
  EXPECT_EQ(in_prefill(served[0]), 64 * kUs);
  EXPECT_EQ(in_prefill(served[1]), 32 * kUs);
}

// It goes along with the request to the replica that decodes it.
TEST(PolicyTime, OfPrefillAndDecodeReplicas) {
  const SimSetup setup =
      pools_setup(1, 1, "least_outstanding", working_setup("{budget_tokens: 64, async_scheduling: false}", Picoseconds{1'000'000}));
  const std::vector<RequestRecord> served = served_by(setup, {request_at(0, 100, 5)});
  ASSERT_EQ(served.at(0).outcome, Outcome::kCompleted);
  EXPECT_EQ(served[0].replica, 1U);
  EXPECT_EQ(in_prefill(served[0]), 100 * kUs);
  EXPECT_EQ(in_decode(served[0]), 4 * kUs);
}

// Without work there is none, and a request that is cut off has that of its steps so far.
TEST(PolicyTime, OfUnfinishedRequests) {
  SimSetup setup = working_setup("{budget_tokens: 64, async_scheduling: false}");
  setup.stop.after_time = Span(113 * kUs);
  const std::vector<RequestRecord> cut = served_by(setup, {request_at(0, 100, 5), request_at(0.1, 100, 5)});
  EXPECT_EQ(cut.at(0).outcome, Outcome::kUnfinished);
  EXPECT_EQ(in_prefill(cut[0]), 100 * kUs);
  EXPECT_EQ(in_decode(cut[0]), 0);
  EXPECT_EQ(in_prefill(cut.at(1)), 0);
  setup.make_footprint = [] { return std::make_unique<KeepAll>(); };
  for (const RequestRecord& r : served_by(setup, {request_at(0, 100, 5)})) EXPECT_EQ(in_prefill(r) + in_decode(r), 0);
}

// Policies with work in decode steps, of which many are carried out at once; little memory, so that requests are preempted.
TEST(PolicyTime, OfSkippedStepsIsThatOfSingleSteps) {
  constexpr ModelShape shape{4, 8, 2, 64, 128};
  for (const char* name : {"h2o", "quest", "kivi2", "streaming"}) {
    for (const char* parameters :
         {"{budget_tokens: 256, max_num_seqs: 8}", "{budget_tokens: 256, max_num_seqs: 8, async_scheduling: false}"}) {
      SimSetup setup = working_setup(parameters, Picoseconds{17});
      const Recipe own = load_recipe(name);
      const Recipe recipe = own.has_budget || own.selector != "all" ? load_recipe(name, 144) : own;
      setup.make_footprint = [recipe] { return std::make_unique<RecipeFootprint>(recipe, shape, 16); };
      setup.memory.num_blocks = 120;
      setup.max_model_len = 1000;
      const Workload w = random_workload(7, 40, 0.3, 250);
      std::vector<RequestRecord> stepped, skipped;
      std::uint64_t preemptions = 0, events[2] = {0, 0};
      for (const bool skips : {false, true}) {
        setup.fast_forward = skips;
        VectorTrace trace(w.requests);
        Recorder records;
        const RunSummary summary = simulate(setup, trace, records);
        preemptions = summary.preemptions;
        events[skips ? 1 : 0] = summary.events;
        (skips ? skipped : stepped) = records.requests;
      }
      EXPECT_LT(events[1], events[0]) << name;
      ASSERT_EQ(stepped.size(), skipped.size());
      std::int64_t prefill = 0, decode = 0;
      for (std::size_t i = 0; i < stepped.size(); ++i) {
        EXPECT_EQ(stepped[i].prefill_policy, skipped[i].prefill_policy) << name << " request " << stepped[i].number;
        EXPECT_EQ(stepped[i].decode_policy, skipped[i].decode_policy) << name << " request " << stepped[i].number;
        if (stepped[i].outcome != Outcome::kCompleted) continue;
        EXPECT_LE(in_prefill(stepped[i]), (stepped[i].first_token - stepped[i].scheduled).count());
        EXPECT_LE(in_decode(stepped[i]), (stepped[i].last_token - stepped[i].first_token).count());
        prefill += in_prefill(stepped[i]);
        decode += in_decode(stepped[i]);
      }
      EXPECT_GT(prefill + decode, 0) << name;
      if (std::string(name) != "streaming") EXPECT_GT(decode, 0) << name;
      if (std::string(name) == "quest") EXPECT_GT(preemptions, 0U) << name;
    }
  }
}

}  // namespace
}  // namespace kvlab::testing
