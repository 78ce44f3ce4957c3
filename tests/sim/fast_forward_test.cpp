// The fast-forward identity: every record of a run is the same with it on and off, for every scheduler, several KV policies,
// both pipeline depths, with preemption, prefix hits, swapping, several replicas and samples in between.
#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <ostream>

#include "base/hash.h"
#include "base/random.h"
#include "policies/kv/grouped_layers.h"
#include "tests/serving/sink_window.h"
#include "tests/short_run.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

struct Case {
  std::string scheduler, parameters;
  std::uint64_t seeds = 60;
  std::string order = "fcfs", order_parameters = "{}", predictor = "exact";
};

struct Workload {
  std::vector<TraceRequest> requests;
  std::vector<std::vector<std::uint64_t>> hashes;
  std::vector<RequestFacts> facts;
};

// Requests in shared-prefix groups; some name their generated tokens, some have no content. Five clients, three priorities.
Workload random_workload(std::uint64_t seed, std::size_t count, double gap_ms, std::uint64_t longest_output) {
  Workload w;
  w.hashes.resize(count);
  w.facts.resize(count);
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, i, step, 0}; };
    at += draw(0).exponential(gap_ms);
    TraceRequest r =
        request_at(at, static_cast<std::int32_t>(1 + draw(1).below(400)), static_cast<std::int32_t>(1 + draw(2).below(longest_output)));
    const std::uint64_t kind = draw(3).below(3);
    if (kind > 0) {
      const std::uint64_t group = draw(4).below(4);
      const std::int32_t named = kind == 1 ? r.prompt_tokens : r.prompt_tokens + r.output_tokens;
      for (std::int32_t block = 0; block < named / 16; ++block) {
        const bool shared = block < 6;
        w.hashes[i].push_back(
            mix64(shared ? group * 1000 + static_cast<std::uint64_t>(block) : (seed + i) * 100'000 + static_cast<std::uint64_t>(block)));
      }
      r.hash_tokens = 16;
      r.hashes = w.hashes[i];
    }
    w.facts[i].client = static_cast<std::int64_t>(draw(5).below(5));
    w.facts[i].priority = static_cast<std::int32_t>(draw(6).below(3));
    w.facts[i].ttft_slo = Span(static_cast<std::int64_t>(draw(7).below(100'000'000)));
    if (i % 3 == 0) w.facts[i].tbt_slo = Span(static_cast<std::int64_t>(5'000 + draw(8).below(10'000)));  // a step takes 5 us or more
    r.facts = &w.facts[i];
    w.requests.push_back(r);
  }
  return w;
}

std::string text_of(const RunSummary& s, const Recorder& records) {
  std::string text;
  const auto add = [&](auto... values) {
    ((text += std::to_string(values) + " "), ...);
    text += "\n";
  };
  const auto& l = s.latencies;
  for (const Distribution& d : {l.ttft, l.tpot, l.itl, l.e2e, l.queueing, l.qoe_loss})
    add(d.count, d.mean, d.p50, d.p90, d.p95, d.p99, d.max);
  add(l.judged, l.attained);
  add(s.requests, ns(s.duration), s.preemptions, s.swaps, s.recompute_fallbacks, s.recomputed_tokens, s.lookup_tokens, s.hit_tokens,
      s.steps, s.evictions);
  add(s.batch_mean_requests, s.batch_mean_tokens, s.kv_used_mean_frac, s.kv_used_peak_frac, s.busy_frac, s.overload_frac, s.mfu_frac,
      s.mbu_frac, s.internal_fragmentation_frac, s.external_fragmentation_frac);
  add(std::bit_cast<std::int64_t>(s.peak_s), s.output_tokens);  // to the last bit
  for (const double f : s.part_frac) add(f);
  for (const double f : s.footing_frac) add(f);
  for (const auto& part : s.step_shares)
    for (const double f : part) add(f);
  for (const RequestRecord& r : records.requests) {
    add(r.number, r.replica, ns(r.queued), ns(r.scheduled), ns(r.first_token), ns(r.last_token), r.hit_tokens, r.preemptions,
        r.recomputed_tokens, static_cast<int>(r.outcome), static_cast<int>(r.gaps));
  }
  for (const TimelineSample& t : records.samples)
    add(ns(t.at), t.replica, t.running, t.waiting, t.swapped, t.used_blocks, t.cached_blocks, t.free_blocks, t.prompt_tokens,
        t.output_tokens);
  return text;
}

std::string run(SimSetup setup, const Workload& w, bool fast_forward) {
  setup.fast_forward = fast_forward;
  VectorTrace trace(w.requests);
  Recorder records;
  const RunSummary summary = simulate(setup, trace, records);
  return text_of(summary, records);
}

class FastForward : public ::testing::TestWithParam<Case> {};

std::function<std::unique_ptr<Footprint>()> sink_window(const SimSetup& setup, std::int32_t budget, Footprint::OnPreempt mode) {
  return [budget, mode, memory = setup.memory] {
    return std::make_unique<SinkWindow>(budget, memory.block_tokens, memory.pages_per_block, mode);
  };
}

// Limits of gaps and an expected text, about as long as a step.
void draw_targets(std::uint64_t seed, SimSetup& setup) {
  const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, 99, step, 1}; };
  if (draw(14).below(2) == 0) {  // off: requests with targets of their own alone
    setup.slo.is_set = true;
    setup.slo.ttft = setup.slo.tpot = Span::max();
    setup.slo.tbt = Span(static_cast<std::int64_t>(5'000 + draw(15).below(10'000)));
    setup.slo.tbt_ppm = static_cast<std::int32_t>(500'000 + 100'000 * draw(16).below(6));
    setup.slo.clients[2] = {};
  }
  if (draw(17).below(2) == 0)
    setup.expected_text = ExpectedText{Span(static_cast<std::int64_t>(draw(18).below(1'000'000))),
                                       Span(static_cast<std::int64_t>(2'000 + draw(19).below(20'000)))};
}

TEST_P(FastForward, ChangesNothing) {
  static constexpr const char* kCaches[] = {"lru", "fifo", "s3fifo", "lfu", "arc", "gdsf"};
  static constexpr std::int64_t kHostBlocks[] = {0, 12, 40, 400};
  const Case& c = GetParam();
  const std::uint64_t seeds = short_run() ? c.seeds / 6 : c.seeds;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, 99, step, 1}; };
    SimSetup setup = basic_setup(c.scheduler, c.parameters);
    setup.make_order = policy<OrderRegistry>("order", c.order, c.order_parameters);
    setup.make_predictor = policy<PredictorRegistry>("predictor", c.predictor, c.predictor == "lognormal" ? "{sigma: 1}" : "{}");
    setup.make_block_cache = policy<BlockCacheRegistry>("block cache", kCaches[seed % std::size(kCaches)], "{}");
    setup.memory.num_blocks = static_cast<std::int64_t>(60 + draw(0).below(200));
    setup.memory.host_blocks = kHostBlocks[draw(1).below(std::size(kHostBlocks))];
    setup.max_model_len = 1000;
    setup.num_replicas = static_cast<std::uint32_t>(1 + draw(2).below(2));
    const std::uint64_t policy_kind = draw(3).below(6);
    if (policy_kind == 1) setup.make_footprint = sink_window(setup, 96, Footprint::OnPreempt::kSwap);
    if (policy_kind == 2) setup.make_footprint = sink_window(setup, 49, Footprint::OnPreempt::kRecomputeChunked);
    if (policy_kind == 3 || policy_kind == 4) {  // layers with a window, or with a state
      const bool has_window = policy_kind == 3;
      const LayerGroups groups{setup.memory.block_tokens, has_window ? 100 : 0, has_window ? 5 : 0, has_window ? 0 : 11, 0};
      setup.make_footprint = [groups] { return std::make_unique<GroupedLayers>(groups); };
    }
    LinearPrices prices;
    prices.window = seed % 4 == 0 ? 120 : 0;
    prices.host = draw(4).below(2) == 0 ? Picoseconds{} : Picoseconds{static_cast<std::int64_t>(draw(5).below(9'000'000))};
    prices.cell = static_cast<std::int64_t>(100 + draw(6).below(5000));
    setup.make_cost_model = [prices] { return std::make_unique<LinearCost>(prices); };
    setup.timeline_interval = Span(static_cast<std::int64_t>(1'000'000 + draw(7).below(20'000'000)));
    draw_targets(seed, setup);
    setup.warmup = Span(static_cast<std::int64_t>(draw(8).below(50'000'000)));
    if (draw(10).below(4) == 0) setup.stop.after_time = Span(static_cast<std::int64_t>(1'000'000 + draw(11).below(60'000'000)));
    Workload w = random_workload(seed, 60, 0.05 + 4 * draw(9).uniform(), draw(13).below(2) == 0 ? 120 : 500);
    if (draw(12).below(4) == 0) {
      for (std::size_t i = 0; i < w.requests.size(); i += 3) w.requests[i].prompt_tokens = 1;
    }
    const bool is_same = run(setup, w, false) == run(setup, w, true);
    ASSERT_TRUE(is_same) << c.scheduler << " " << c.parameters << " " << c.order << " " << c.order_parameters << " seed " << seed;
  }
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.scheduler << ' ' << c.parameters << ' ' << c.order; }

std::vector<Case> orders_and_schedulers() {
  const std::vector<std::pair<std::string, std::string>> schedulers = {{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                                       {"vllm_v1", "{budget_tokens: 256, async_scheduling: false}"},
                                                                       {"sarathi", "{budget_tokens: 64, max_num_seqs: 12}"},
                                                                       {"fastgen", "{forward_tokens: 256, max_num_seqs: 16}"},
                                                                       {"vllm_v0", "{max_num_seqs: 12, preemption: swap}"},
                                                                       {"static", "{max_batch_seqs: 8, window_ms: 3}"},
                                                                       {"orca", "{max_num_seqs: 16}"}};
  const std::vector<Case> orders = {{"", "", 0, "priority", "{}", "exact"},
                                    {"", "", 0, "priority", "{preemptive: true}", "exact"},
                                    {"", "", 0, "sjf", "{}", "lognormal"},
                                    {"", "", 0, "srpt", "{preemptive: false}", "lognormal"},
                                    {"", "", 0, "srpt", "{}", "exact"},
                                    {"", "", 0, "srpt", "{preemption: swap}", "lognormal"},
                                    {"", "", 0, "mlfq", "{quantum_ms: 5, starvation_ms: 30, scan_steps: 20}", "exact"},
                                    {"", "", 0, "vtc", "{}", "exact"},
                                    {"", "", 0, "vtc", "{charge_predicted: true, cost: profiled}", "history"},
                                    {"", "", 0, "andes", "{ttft_ms: 10, tokens_per_s: 50, horizon_s: 1}", "exact"},
                                    {"", "", 0, "edf", "{}", "exact"},
                                    {"", "", 0, "longest_prefix", "{}", "exact"},
                                    {"", "", 0, "longest_prefix", "{most_waiting: 10}", "exact"}};
  std::vector<Case> all;
  for (const auto& [scheduler, parameters] : schedulers) {
    const bool overtakes = policy<SchedulerRegistry>("scheduler", scheduler, parameters)()->lets_overtake();
    for (const Case& c : orders) {
      if (policy<OrderRegistry>("order", c.order, c.order_parameters)()->overtaking() && !overtakes) continue;
      all.push_back({scheduler, parameters, 24, c.order, c.order_parameters, c.predictor});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Orders, FastForward, ::testing::ValuesIn(orders_and_schedulers()),
                         [](const auto& info) { return info.param.order + "_" + info.param.scheduler + "_" + std::to_string(info.index); });

// Whatever the order, all requests are served, each with all of its tokens. 60 of them in memory for a few.
TEST_P(FastForward, ServesEveryRequestWhole) {
  const Case& c = GetParam();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SimSetup setup = basic_setup(c.scheduler, c.parameters);
    setup.make_order = policy<OrderRegistry>("order", c.order, c.order_parameters);
    setup.make_predictor = policy<PredictorRegistry>("predictor", c.predictor, c.predictor == "lognormal" ? "{sigma: 1}" : "{}");
    setup.memory.num_blocks = 64;
    setup.memory.host_blocks = seed % 2 == 0 ? 30 : 0;
    setup.max_model_len = 1000;
    const Workload w = random_workload(seed, 60, 1, 200);
    VectorTrace trace(w.requests);
    Recorder records;
    const RunSummary summary = simulate(setup, trace, records);
    ASSERT_EQ(records.requests.size(), 60U);
    for (const RequestRecord& r : records.requests) {
      if (r.outcome == Outcome::kRejected) continue;
      ASSERT_EQ(r.outcome, Outcome::kCompleted);
      EXPECT_EQ(r.output_tokens, w.requests[r.number].output_tokens);
      EXPECT_LE(r.queued, r.scheduled);
      EXPECT_LT(r.scheduled, r.first_token);
    }
    EXPECT_GE(summary.latencies.completed, 40U) << c.order << " seed " << seed << ": " << summary.first_rejection;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedulers, FastForward,
    ::testing::Values(Case{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 16}"},
                      Case{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 16, async_scheduling: false}"},
                      Case{"vllm_v1", "{budget_tokens: 2048, max_num_seqs: 64, reserve_full_prompt: false}"},
                      Case{"vllm_v1", "{budget_tokens: 64, reserve_full_prompt: false}"},
                      Case{"vllm_v1", "{budget_tokens: 64, reserve_full_prompt: false, async_scheduling: false}"},
                      Case{"vllm_v1", "{budget_tokens: 380, chunked_prefill: false}"}, Case{"static", "{max_batch_seqs: 8}"},
                      Case{"static", "{max_batch_seqs: 8, max_len_tokens: 500, window_ms: 3}"}, Case{"orca", "{max_num_seqs: 16}"},
                      Case{"orca", "{max_num_seqs: 16, reservation: pow2}"}, Case{"orca", "{reservation: oracle}"},
                      Case{"vllm_v0", "{max_num_seqs: 16}"}, Case{"vllm_v0", "{preemption: swap, watermark_frac: 0.05}"},
                      Case{"vllm_v0", "{preemption: swap, watermark_frac: 0}"}, Case{"vllm_v0", "{preemption: swap, max_num_seqs: 5}"},
                      Case{"vllm_v0", "{budget_tokens: 420}"}, Case{"vllm_v0", "{budget_counting: padded, budget_tokens: 600}"},
                      Case{"sarathi", "{budget_tokens: 64}"},
                      Case{"sarathi", "{version: decode_maximal, budget_tokens: 128, watermark_frac: 0}", 240},
                      Case{"sarathi", "{version: decode_maximal, watermark_frac: 0.2}"}, Case{"sarathi", "{budget_tokens: 4}"},
                      Case{"sarathi", "{dynamic_stages: 4, dynamic_high_tokens: 256, dynamic_low_tokens: 32, dynamic_span_tokens: 300}"},
                      Case{"fastgen", "{forward_tokens: 256, max_num_seqs: 16}"}, Case{"fastgen", "{forward_tokens: 64}"}),
    [](const auto& info) { return info.param.scheduler + "_" + std::to_string(info.index); });

// A cut sequence that must be recomputed asks for no more than its first cut did: in a pool just large enough for one
// request it comes back, whatever the scheduler.
TEST(CutSequences, ComeBackInAFullPool) {
  for (const char* scheduler : {"vllm_v1", "vllm_v0", "sarathi", "fastgen"}) {
    SimSetup setup = basic_setup(scheduler);
    setup.memory.num_blocks = 12;
    setup.memory.block_tokens = 8;
    setup.make_footprint = sink_window(setup, 32, Footprint::OnPreempt::kSwap);
    setup.max_model_len = 400;
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(request_at(0.01 * i, 20 + 2 * i, 100));
    VectorTrace trace(requests);
    Recorder records;
    const RunSummary summary = simulate(setup, trace, records);
    EXPECT_EQ(summary.latencies.completed, 12U) << scheduler << ": " << summary.first_rejection;
  }
}

// The identity is worth something only if stretches are really skipped: a lone long decode takes few events.
TEST(FastForwardEffect, SkipsSteps) {
  SimSetup setup = basic_setup("vllm_v1", "{}");
  setup.timeline_interval = Span{0};
  VectorTrace trace({request_at(0, 100, 10'000)});
  Recorder records;
  const RunSummary summary = simulate(setup, trace, records);
  EXPECT_EQ(summary.steps, 10'000u);
  EXPECT_LT(summary.events, 100u);
}

}  // namespace
}  // namespace kvlab::testing
