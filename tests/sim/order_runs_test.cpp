// Runs under orders: every request is served whole, memory and queues are conserved after every step, and fast-forward changes nothing.
// Drawn orders, predictors, schedulers, block caches, memories and KV policies; KVLAB_SEEDS=first:count draws others, KVLAB_FULL 400.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "policies/order/keyed_order.h"
#include "serving/replica_state.h"
#include "tests/drawn_orders.h"
#include "tests/error_of.h"
#include "tests/short_run.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

using test::Drawn;
using test::drawn_facts;
using test::drawn_further_orders;
using test::drawn_order;
using test::DrawnOrder;

constexpr double kMeanStepMs = 0.01;  // of LinearCost, about

std::span<const BlockId> written_blocks(const StepEntry& entry, const ReplicaState& state) {
  const std::vector<BlockId>& blocks = state.table()[entry.request].blocks;
  const auto first = static_cast<std::size_t>(entry.computed_before / state.block_tokens());
  const auto end = static_cast<std::size_t>((entry.computed_before + entry.tokens - 1) / state.block_tokens()) + 1;
  return end <= blocks.size() ? std::span(blocks).subspan(first, end - first) : std::span<const BlockId>{};
}

// Checks the replica after the plan of each step: no step writes to a block while it is copied out.
struct CheckedRecords final : RunSink {
  void request(const RequestRecord& r) override { all.request(r); }
  void sample(const TimelineSample& s) override { all.sample(s); }
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& step, const ReplicaState& state) override {
    state.check();
    for (const StepEntry& entry : step.entries)
      EXPECT_LE(state.copies_out().free_at(written_blocks(entry, state)), step.start) << "request " << state.table()[entry.request].number;
  }
  Recorder all;
};

std::pair<std::string, std::string> drawn_scheduler(Drawn& draw) {
  const std::int32_t budget = draw.of<std::int32_t>({32, 64, 256, 2048}), seqs = draw.of<std::int32_t>({4, 12, 64});
  const std::string sizes = fmt::format("budget_tokens: {}, max_num_seqs: {}", budget, seqs);
  const std::int32_t kind = draw.from(0, 11);
  if (kind == 0) return {"vllm_v1", fmt::format("{{{}}}", sizes)};
  if (kind == 1) return {"vllm_v1", fmt::format("{{{}, async_scheduling: false}}", sizes)};
  if (kind == 2) return {"vllm_v1", fmt::format("{{{}, reserve_full_prompt: false, async_scheduling: {}}}", sizes, draw.one_in(2))};
  if (kind == 3) return {"sarathi", fmt::format("{{{}}}", sizes)};
  if (kind == 4) return {"sarathi", fmt::format("{{{}, version: decode_maximal, watermark_frac: 0}}", sizes)};
  if (kind == 5) return {"fastgen", fmt::format("{{forward_tokens: {}, max_num_seqs: {}}}", budget, seqs)};
  if (kind == 6) return {"vllm_v0", fmt::format("{{max_num_seqs: {}, preemption: {}}}", seqs, draw.one_in(3) ? "recompute" : "swap")};
  if (kind == 7) return {"orca", fmt::format("{{max_num_seqs: {}}}", seqs)};
  if (kind == 8) return {"sglang", fmt::format("{{chunk_tokens: {}, max_num_seqs: {}}}", budget, seqs)};
  if (kind == 9) return {"sglang", fmt::format("{{chunk_tokens: {}, max_num_seqs: {}, mixed_chunk: true, overlap: false}}", budget, seqs)};
  if (kind == 10) return {"s3", fmt::format("{{max_num_seqs: {}, window_ms: {}}}", seqs, draw.one_in(2) ? "0.1" : "10000")};
  return {"static", "{max_batch_seqs: 8, window_ms: 0.05}"};
}

struct DrawnRun {
  std::string text;
  SimSetup setup;
  Workload workload;
};

// Copies during steps, over turns of seven sessions, and in a form of their own.
void draw_swap(Drawn& draw, SimSetup& setup, Workload& workload) {
  using Overlap = SwapSetup::Overlap;
  SwapSetup& swap = setup.memory.swap;
  swap.overlap = draw.of<Overlap>({Overlap::kNone, Overlap::kOut, Overlap::kAdaptive});
  swap.keeps_turns = setup.memory.keeps_host_copies && draw.one_in(2);
  for (std::size_t i = 0; i < workload.requests.size() && swap.keeps_turns; ++i)
    workload.requests[i].session = static_cast<std::int64_t>(i % 7);
  setup.swap_link.call_time = Span(draw.of<std::int32_t>({0, 2'000, 10'000}));
  if (!draw.one_in(3)) return;
  swap.codec = {setup.memory.block_bytes / 2, {"quantize", 8, 40'000, 1000}, {"dequantize", 8, 20'000, 500}};
  setup.make_cost_model = linear_cost({.op_byte = Picoseconds{1}});
}

DrawnRun draw_run(std::uint64_t seed) {
  Drawn draw(seed);
  DrawnRun run;
  const auto [scheduler, options] = drawn_scheduler(draw);
  SimSetup& setup = run.setup = basic_setup(scheduler, options);
  const bool overtakes = setup.make_scheduler()->lets_overtake();
  const DrawnOrder order = drawn_order(draw, overtakes, kMeanStepMs, drawn_further_orders(draw, overtakes, kMeanStepMs));
  const std::string cache = draw.of<std::string>({"lru", "fifo", "s3fifo", "lfu", "arc", "gdsf", "block_groups"});
  setup.make_order = policy<OrderRegistry>("order", order.order, order.options);
  setup.make_predictor = policy<PredictorRegistry>("predictor", order.predictor, order.predictor_options);
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", cache, "{}");
  setup.seed = seed;
  setup.memory.num_blocks = draw.of<std::int32_t>({40, 60, 120, 300});
  setup.memory.host_blocks = draw.of<std::int32_t>({0, 12, 400});
  setup.memory.swap_group_blocks = draw.of<std::int32_t>({1, 8});
  setup.memory.keeps_host_copies = draw.one_in(2);
  setup.memory.prefix_caching = !draw.one_in(4);
  setup.max_model_len = 600;
  setup.num_replicas = draw.one_in(3) ? 2 : 1;
  setup.timeline_interval = Span(draw.of<std::int32_t>({100'000, 2'000'000}));
  setup.stop.after_time = Span(2'000'000'000);  // a run that takes so long never ends
  const std::int32_t kv_policy = draw.from(0, 5);
  if (kv_policy == 4) setup.make_footprint = sink_window(setup, 96, Footprint::OnPreempt::kSwap);
  if (kv_policy == 5) setup.make_footprint = sink_window(setup, 49, Footprint::OnPreempt::kRecomputeChunked);
  const double gap_ms = draw.of<double>({0.005, 0.03, 0.2});
  run.workload = random_workload(seed, 60, gap_ms, draw.one_in(2) ? 40 : 190);
  for (std::size_t i = 0; i < run.workload.facts.size(); ++i) run.workload.facts[i] = drawn_facts(draw, kMeanStepMs);
  draw_swap(draw, setup, run.workload);
  run.text = fmt::format(
      "seed {}: {} {}, {} {}, {} {}, {}, {} blocks, {} on the host, groups of {}, copies kept {} over turns {}, overlap {}, codec {}, KV "
      "policy {}, a request per {} ms",
      seed, scheduler, options, order.order, order.options, order.predictor, order.predictor_options, cache, setup.memory.num_blocks,
      setup.memory.host_blocks, setup.memory.swap_group_blocks, setup.memory.keeps_host_copies, setup.memory.swap.keeps_turns,
      static_cast<int>(setup.memory.swap.overlap), setup.memory.swap.codec.is_on(), kv_policy, gap_ms);
  return run;
}

TEST(OrderRuns, ServeAllRequestsWholeAndFastForwardChangesNothing) {
  const auto [first, count] = test::drawn_seeds(full_run() ? 400 : 100, 12);
  std::uint64_t preemptions = 0, swaps = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    DrawnRun drawn = draw_run(seed);
    SCOPED_TRACE(drawn.text);
    drawn.setup.fast_forward = false;
    CheckedRecords slow;
    RunSummary summary;
    ASSERT_EQ(error_of([&] { summary = run_into(slow, drawn.setup, drawn.workload.requests); }), "no error");
    expect_whole(drawn.workload, slow.all);
    EXPECT_GT(summary.latencies.completed, 0U) << summary.first_rejection;
    const bool is_same = text_of(summary, slow.all) == run(drawn.setup, drawn.workload, true);
    EXPECT_TRUE(is_same) << "fast-forward changes the run";
    preemptions += summary.preemptions, swaps += summary.swaps;
  }
  if (count < 10) return;
  EXPECT_GT(preemptions, 0U);
  EXPECT_GT(swaps, 0U);
}

SimSetup small_setup(const std::string& parameters, const std::string& order, const std::string& order_parameters) {
  SimSetup setup = basic_setup("vllm_v1", parameters);
  setup.make_order = policy<OrderRegistry>("order", order, order_parameters);
  setup.memory.num_blocks = 4;
  return setup;
}

// Request 0 was admitted first and is the last by the order. When it needs its third block it gives way itself, before request 1 is looked
// at: that plan is empty. Nothing is in flight and nothing arrives, so another plan must follow at once, in which request 1 runs.
TEST(OrderRuns, APlanThatOnlyPreemptsIsFollowedByAnother) {
  Workload w;
  w.facts.resize(2);
  w.facts[0].priority = 9, w.facts[1].priority = 1;
  w.requests = {request_at(0, 30, 10), request_at(0.001, 20, 10)};
  for (std::size_t i = 0; i < 2; ++i) w.requests[i].facts = &w.facts[i];
  const SimSetup setup = small_setup("{async_scheduling: false}", "priority", "{}");
  const auto [records, summary] = serve(setup, w.requests);
  expect_whole(w, records);
  EXPECT_EQ(summary.preemptions, 1U);
}

// Blocks of 16 tokens, 4 in all. In the first decode step request 0 takes its second block, and one is left; request 2 overtakes it and
// found two free blocks for its prompt when that plan began. The plan after it preempts request 0.
TEST(OrderRuns, FastForwardEndsWhereTheNextPlanPreempts) {
  for (const char* mode : {"recompute", "swap"}) {
    Workload w;
    w.requests = {request_at(0, 16, 30), request_at(0, 10, 20), request_at(0.001, 20, 5)};
    SimSetup setup = small_setup("{async_scheduling: false}", "srpt", fmt::format("{{preemption: {}}}", mode));
    setup.memory.host_blocks = 10;
    setup.timeline_interval = Span{0};
    setup.fast_forward = false;
    const auto [records, summary] = serve(setup, w.requests);
    EXPECT_GE(summary.preemptions, 1U);
    EXPECT_EQ(text_of(summary, records), run(setup, w, true)) << mode;
  }
}

// ReplicaView::step_time() in the simulator: the estimate of a step is the time that the step then takes.

using Compared = std::vector<std::pair<Span, Span>>;  // estimate and duration of each step

// By arrival; it asks for an estimate of each step of one request.
class Asking final : public KeyedOrder {
 public:
  explicit Asking(Compared& to) : to_(to) {}
  [[nodiscard]] bool watches_steps() const override { return true; }
  void on_step_end(std::span<const StepEntry> entries, Span duration) override {
    ASSERT_EQ(entries.size(), 1U);
    const StepEntry& entry = entries[0];
    StepOutline outline{1, entry.kv_before, 0, 0};
    if (entry.kv_before == 0) outline = {0, 0, entry.tokens, 0};
    const std::optional<Span> estimate = view().step_time(outline);
    ASSERT_TRUE(estimate.has_value());
    to_.emplace_back(*estimate, duration);
  }

 private:
  [[nodiscard]] std::int64_t rank(RequestId /*r*/) const override { return 0; }
  Compared& to_;
};

Compared compared_steps(const LinearPrices& prices, std::int32_t output) {
  Compared compared;
  SimSetup setup = basic_setup("vllm_v1", "{async_scheduling: false}");
  setup.make_order = [&] { return std::make_unique<Asking>(compared); };
  setup.make_cost_model = linear_cost(prices);
  summary_of(setup, {request_at(0, 100, output)});
  EXPECT_EQ(compared.size(), static_cast<std::size_t>(output));
  return compared;
}

TEST(StepEstimate, IsTheTimeOfTheStep) {
  const Compared compared = compared_steps({.cell = 110}, 30);
  for (const auto& [estimate, duration] : compared) EXPECT_EQ(estimate, duration);
  EXPECT_GT(compared.at(0).second, compared.at(1).second) << "a prompt of 100 tokens, then one token";
}

// Host time comes on top: a host of 7 us makes every step so much longer.
TEST(StepEstimate, HasHostTime) {
  for (const std::int64_t host : {0, 7'000'000})
    for (const auto& [estimate, duration] : compared_steps({.host = Picoseconds{host}}, 5)) EXPECT_EQ(ns(estimate - duration), host / 1000);
}

// The bound of VTC (Sheng et al. 2024, arXiv:2401.00588): clients that always have waiting requests differ by at most
// 2 max(w_in L_in, w_out M) in the service they were given, however different their requests are; M: tokens that fit the memory.

constexpr std::int32_t kLongestPrompt = 400;
constexpr std::int64_t kBlocks = 400, kBlockTokens = 16;
constexpr double kBound = 2.0 * std::max<double>(kLongestPrompt, 2.0 * kBlocks * kBlockTokens);

// Service of clients 0 and 1: prompts that were admitted, and twice the tokens emitted. All requests of client 0 come before those of
// client 1.
std::array<double, 2> service(const std::string& order, const std::string& parameters) {
  std::array<RequestFacts, 2> facts;
  for (std::int64_t c = 0; c < 2; ++c) facts[static_cast<std::size_t>(c)].client = c;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 3000; ++i) {
    const bool is_first = i < 2000;
    TraceRequest r = request_at(1e-6 * i, is_first ? 20 : kLongestPrompt, is_first ? 200 : 100);
    r.facts = &facts[is_first ? 0 : 1];
    requests.push_back(r);
  }
  SimSetup setup = basic_setup("vllm_v1", "{max_num_seqs: 64}");
  setup.make_order = policy<OrderRegistry>("order", order, parameters);
  setup.memory.num_blocks = kBlocks;
  setup.memory.block_tokens = kBlockTokens;
  setup.stop.after_time = Span(20'000'000);
  const Recorder records = records_of(setup, requests);
  std::array<double, 2> served{}, waiting{};
  for (const RequestRecord& r : records.requests) {
    const auto client = static_cast<std::size_t>(r.facts->client);
    if (r.scheduled == kNever) ++waiting[client];
    if (r.scheduled != kNever) served[client] += r.prompt_tokens + 2.0 * r.output_tokens;
  }
  for (const double left : waiting) EXPECT_GT(left, 0) << order << ": both must have waiting requests to the end";
  return served;
}

TEST(VtcBound, HoldsBetweenUnequalClientsByWeightAndWithPredictedOutputs) {
  for (const auto& [parameters, weight] : {std::pair{"{}", 1}, {"{weights: {1: 3}}", 3}, {"{charge_predicted: true}", 1}}) {
    const auto [first, second] = service("vtc", parameters);
    EXPECT_LE(std::abs(first - second / weight), kBound) << parameters << ": " << first << " against " << second;
    if (weight > 1) {
      EXPECT_GT(second, first);
    }
  }
  const auto [before, after] = service("fcfs", "{}");
  EXPECT_GT(before - after, kBound) << "first come, first served has no such bound";
}

// The CPU time of a simulation in which 20,000 requests wait, by order: a few times what first come, first served costs.

constexpr std::size_t kRequests = 20'000;

// They all come within the first second, ten times faster than they are served.
Workload load() {
  Workload l;
  l.facts.resize(kRequests);
  for (std::size_t i = 0; i < kRequests; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{7, Purpose::kTest, i, step, 0}; };
    TraceRequest r = request_at(0.05 * static_cast<double>(i), static_cast<std::int32_t>(20 + draw(0).below(200)),
                                static_cast<std::int32_t>(10 + draw(1).below(150)));
    l.facts[i].client = static_cast<std::int64_t>(draw(2).below(27));
    l.facts[i].request_class = ClassName("c" + std::to_string(draw(5).below(5)));
    l.facts[i].priority = static_cast<std::int32_t>(draw(3).below(5));
    l.facts[i].ttft_slo = Span(static_cast<std::int64_t>(draw(4).below(1'000'000'000)));
    r.facts = &l.facts[i];
    l.requests.push_back(r);
  }
  return l;
}

SimSetup overloaded(const std::string& order, const std::string& parameters) {
  SimSetup setup = basic_setup("vllm_v1", "{max_num_seqs: 128}");
  setup.make_order = policy<OrderRegistry>("order", order, parameters);
  setup.memory.num_blocks = 4000;
  setup.timeline_interval = Span{0};
  return setup;
}

// The least of several runs taken in turn: a busy machine slows single ones down.
TEST(OrderOverload, CostsAtMostThreeTimesFirstComeFirstServed) {
  if (short_run()) GTEST_SKIP() << "63 runs of 20,000 requests take too long with KVLAB_SHORT set";
  const std::vector<std::pair<std::string, std::string>> orders = {
      {"fcfs", "{}"},      {"priority", "{}"},
      {"sjf", "{}"},       {"srpt", "{}"},
      {"mlfq", "{}"},      {"mlfq", "{preemption: keep, swap_ahead_blocks: 64}"},
      {"vtc", "{}"},       {"vtc", "{weights: {0: 2, 7: 0.5}}"},
      {"andes", "{}"},     {"andes", "{batch_sizes: 4, search_steps: 16}"},
      {"edf", "{}"},       {"longest_prefix", "{}"},
      {"alise", "{}"},     {"alise", "{swap_ahead_blocks: 64}"},
      {"etc_u", "{}"},     {"ucb_u", "{}"},
      {"etc_rr", "{}"},    {"ucb_rr", "{}"},
      {"random", "{}"},    {"longest_output", "{}"},
      {"dfs_weight", "{}"}};
  const Workload l = load();
  std::map<std::string, double> least;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [order, parameters] : orders) {
      const double seconds = cpu_seconds(overloaded(order, parameters), l.requests);
      const auto [at, is_new] = least.try_emplace(parameters == "{}" ? order : order + " " + parameters, seconds);
      at->second = std::min(at->second, seconds);
    }
  }
  for (const auto& [order, seconds] : least) {
    RecordProperty(order, std::to_string(seconds));
    EXPECT_LE(seconds, 3 * least["fcfs"] + 0.02) << order << ": " << seconds << " s against " << least["fcfs"] << " s";
  }
}

}  // namespace
}  // namespace kvlab::testing
