// The fast-forward identity: every record of a run is the same with it on and off, for every scheduler, several KV policies,
// both pipeline depths, with preemption, prefix hits, swapping, several replicas and samples in between.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>

#include "base/random.h"
#include "policies/kv/grouped_layers.h"
#include "serving/replica_state.h"
#include "tests/short_run.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

struct Case {
  std::string scheduler, parameters;
  std::uint64_t seeds = 60;
  std::string order = "fcfs", order_parameters = "{}", predictor = "exact";
};

class FastForward : public ::testing::TestWithParam<Case> {};

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
  static constexpr const char* kCaches[] = {"lru", "fifo", "s3fifo", "lfu", "arc", "gdsf", "block_groups"};
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
    setup.memory.swap_group_blocks = static_cast<std::int32_t>(1 + 7 * draw(14).below(3));
    setup.memory.keeps_host_copies = draw(15).below(2) == 1;
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
    setup.make_cost_model = linear_cost(prices);
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

std::vector<Case> orders_to_test() {
  std::vector<Case> all = {{"", "", 0, "priority", "{}", "exact"},
                           {"", "", 0, "priority", "{preemptive: true}", "exact"},
                           {"", "", 0, "srpt", "{preemptive: false}", "lognormal"},
                           {"", "", 0, "srpt", "{}", "exact"},
                           {"", "", 0, "srpt", "{preemption: swap}", "lognormal"},
                           {"", "", 0, "mlfq", "{quantum_ms: 5, starvation_ms: 30, scan_steps: 20}", "exact"},
                           {"", "", 0, "vtc", "{}", "exact"},
                           {"", "", 0, "vtc", "{charge_predicted: true, cost: profiled}", "history"},
                           {"", "", 0, "andes", "{ttft_ms: 10, tokens_per_s: 50, horizon_s: 1}", "exact"},
                           {"", "", 0, "mlfq", "{quantum_ms: 5, swap_ahead_blocks: 12}", "exact"},
                           {"", "", 0, "mlfq", "{quantum_ms: 5, preemption: keep, swap_ahead_blocks: 12}", "exact"},
                           {"", "", 0, "mlfq", "{quantum_ms: 1, preemption: keep, swap_ahead_blocks: 1}", "exact"},
                           {"", "", 0, "alise", "{first_queue_ms: 20, preemption: keep, swap_ahead_blocks: 6}", "lognormal"},
                           {"", "", 0, "andes", "{ttft_ms: 10, tokens_per_s: 50, horizon_s: 1, batch_sizes: 4}", "exact"},
                           {"", "", 0, "andes", "{horizon_s: 1, pressure_frac: 0.3, batch_sizes: 3, search_steps: 7}", "exact"},
                           {"", "", 0, "vtc", "{weights: {0: 2, 3: 0.7}}", "exact"},
                           {"", "", 0, "alise", "{age_s: 0.02, first_queue_ms: 20}", "lognormal"},
                           {"", "", 0, "alise", "{first_queue_ms: 20, swap_ahead_blocks: 6, cpu_floor_frac: 0.3}", "lognormal"},
                           {"", "", 0, "ucb_rr", "{quantum_steps: 3}", "exact"},
                           {"", "", 0, "longest_prefix", "{}", "exact"},
                           {"", "", 0, "longest_prefix", "{most_waiting: 10}", "exact"},
                           {"", "", 0, "fastswitch_priority", "{frequency: 0.1}", "exact"},
                           {"", "", 0, "fastswitch_priority", "{frequency: 0.1, pattern: markov}", "exact"}};
  for (const std::string& name : OrderRegistry::names()) {
    if (name != "fcfs" && std::ranges::find(all, name, &Case::order) == all.end()) all.push_back({"", "", 0, name, "{}", "lognormal"});
  }
  return all;
}

std::vector<Case> orders_and_schedulers() {
  const std::vector<std::pair<std::string, std::string>> schedulers = {{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                                       {"vllm_v1", "{budget_tokens: 256, async_scheduling: false}"},
                                                                       {"sarathi", "{budget_tokens: 64, max_num_seqs: 12}"},
                                                                       {"fastgen", "{forward_tokens: 256, max_num_seqs: 16}"},
                                                                       {"vllm_v0", "{max_num_seqs: 12, preemption: swap}"},
                                                                       {"static", "{max_batch_seqs: 8, window_ms: 3}"},
                                                                       {"sglang", "{chunk_tokens: 256, max_num_seqs: 12}"},
                                                                       {"sglang", "{chunk_tokens: 64, mixed_chunk: true, overlap: false}"},
                                                                       {"orca", "{max_num_seqs: 16}"},
                                                                       {"layered_prefill", "{budget_tokens: 3000, stages: 4}"},
                                                                       {"s3", "{max_num_seqs: 12, window_ms: 5}"}};
  std::vector<Case> all;
  for (const auto& [scheduler, parameters] : schedulers) {
    const bool overtakes = policy<SchedulerRegistry>("scheduler", scheduler, parameters)()->lets_overtake();
    for (const Case& c : orders_to_test()) {
      if (policy<OrderRegistry>("order", c.order, c.order_parameters)()->overtaking() && !overtakes) continue;
      all.push_back({scheduler, parameters, full_run() ? std::uint64_t{24} : std::uint64_t{9}, c.order, c.order_parameters, c.predictor});
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
    const auto [records, summary] = serve(setup, w.requests);
    expect_whole(w, records);
    EXPECT_GE(summary.latencies.completed, 40U) << c.order << " seed " << seed << ": " << summary.first_rejection;
  }
}

std::vector<Case> schedulers_to_test() {
  std::vector<Case> all = {
      Case{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 16}"},
      Case{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 16, async_scheduling: false}"},
      Case{"vllm_v1", "{budget_tokens: 2048, max_num_seqs: 64, reserve_full_prompt: false}"},
      Case{"vllm_v1", "{budget_tokens: 64, reserve_full_prompt: false}"},
      Case{"vllm_v1", "{budget_tokens: 64, reserve_full_prompt: false, async_scheduling: false}"},
      Case{"vllm_v1", "{budget_tokens: 380, chunked_prefill: false}"},
      Case{"static", "{max_batch_seqs: 8}"},
      Case{"static", "{max_batch_seqs: 8, max_len_tokens: 500, window_ms: 3}"},
      Case{"orca", "{max_num_seqs: 16}"},
      Case{"orca", "{max_num_seqs: 16, reservation: pow2}"},
      Case{"orca", "{reservation: oracle}"},
      Case{"vllm_v0", "{max_num_seqs: 16}"},
      Case{"vllm_v0", "{preemption: swap, watermark_frac: 0.05}"},
      Case{"vllm_v0", "{preemption: swap, watermark_frac: 0}"},
      Case{"vllm_v0", "{preemption: swap, max_num_seqs: 5}"},
      Case{"vllm_v0", "{budget_tokens: 420}"},
      Case{"vllm_v0", "{budget_counting: padded, budget_tokens: 600}"},
      Case{"sarathi", "{budget_tokens: 64}"},
      Case{"sarathi", "{version: decode_maximal, budget_tokens: 128, watermark_frac: 0}", 240},
      Case{"sarathi", "{version: decode_maximal, watermark_frac: 0.2}"},
      Case{"sarathi", "{budget_tokens: 4}"},
      Case{"sarathi", "{dynamic_stages: 4, dynamic_high_tokens: 256, dynamic_low_tokens: 32, dynamic_span_tokens: 300}"},
      Case{"s3", "{max_num_seqs: 16}"},
      Case{"s3", "{max_num_seqs: 16, window_ms: 2}", 60, "fcfs", "{}", "lognormal"},
      Case{"s3", "{reorder_requests: 4}", 60, "fcfs", "{}", "lognormal"},
      Case{"fastgen", "{forward_tokens: 256, max_num_seqs: 16}"},
      Case{"fastgen", "{forward_tokens: 64}"},
      Case{"layered_prefill", "{}"},
      Case{"layered_prefill", "{budget_tokens: 700, stages: 4, max_num_seqs: 12}"},
      Case{"layered_prefill", "{budget_tokens: 100}"},
      Case{"skip_decode", "{least_layers: 2, over_tokens: 40}"},
      Case{"skip_decode", "{least_layers: 1, over_tokens: 9, most_layers: 3, batching: {static: {max_batch_seqs: 8}}}"},
      Case{"unified_skip", "{speedup: 2, batching: sarathi}"},
      Case{"first_skip", "{skip_frac: 0.3}"},
      Case{"depth_wise", "{loops: 2, early_exit_frac: 0.4}"},
      Case{"depth_wise", "{loops: 4, early_exit_frac: 0.4, join: first_loop, max_num_seqs: 8}"},
      Case{"sglang", "{chunk_tokens: 256, max_num_seqs: 16}"},
      Case{"sglang", "{chunk_tokens: 64, overlap: false}"},
      Case{"sglang", "{init_ratio: 0.3, ratio_decay_steps: 20, clip_tokens: 8}"},
      Case{"sglang", "{mixed_chunk: true, chunk_tokens: 100, clip_tokens: 1, init_ratio: 0}"},
      Case{"sglang", "{chunk_tokens: 0, max_prefill_tokens: 200, clip_tokens: 1, overlap: false, retract_room_steps: 20}"}};
  for (const std::string& name : SchedulerRegistry::names()) {
    if (std::ranges::find(all, name, &Case::scheduler) == all.end()) all.push_back({name, "{}", 60, "fcfs", "{}", "lognormal"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedulers, FastForward, ::testing::ValuesIn(schedulers_to_test()),
                         [](const auto& info) { return info.param.scheduler + "_" + std::to_string(info.index); });

// A cut sequence that must be recomputed asks for no more than its first cut did: in a pool just large enough for one
// request it comes back, whatever the scheduler.
TEST(CutSequences, ComeBackInAFullPool) {
  for (const char* scheduler : {"vllm_v1", "vllm_v0", "sarathi", "fastgen", "layered_prefill", "sglang"}) {
    SimSetup setup = basic_setup(scheduler);
    setup.memory.num_blocks = 12;
    setup.memory.block_tokens = 8;
    setup.make_footprint = sink_window(setup, 32, Footprint::OnPreempt::kSwap);
    setup.max_model_len = 400;
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(request_at(0.01 * i, 20 + 2 * i, 100));
    const RunSummary summary = summary_of(setup, requests);
    EXPECT_EQ(summary.latencies.completed, 12U) << scheduler << ": " << summary.first_rejection;
  }
}

// The identity is worth something only if stretches are really skipped: a lone long decode takes few events.
TEST(FastForwardEffect, SkipsSteps) {
  SimSetup setup = basic_setup("vllm_v1", "{}");
  setup.timeline_interval = Span{0};
  const RunSummary summary = summary_of(setup, {request_at(0, 100, 10'000)});
  EXPECT_EQ(summary.steps, 10'000u);
  EXPECT_LT(summary.events, 100u);
}

// Step logs of every scheduler on one small trace, against tests/sim/golden/NAME.txt. Those files carry the reasoning of their interesting
// lines as comments. KVLAB_UPDATE_GOLDEN=1 writes the logs anew and keeps comments before lines which are still there; read the difference
// before you commit it.

// A line per step: number, start in ms, request:tokens@computed before, free blocks and waiting requests once it was planned;
// and one per event in a request's life that a step does not show.
struct StepLog final : RunSink {
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& s, const ReplicaState& state) override {
    std::string entries;
    for (const StepEntry& e : s.entries) entries += fmt::format(" {}:{}@{}", state.table()[e.request].number, e.tokens, e.computed_before);
    lines.push_back(fmt::format("{} {:.3f}{} free {} waiting {}", s.number, static_cast<double>(ns(to_time(s.start))) * 1e-6, entries,
                                state.free_blocks(), s.usage.waiting));
  }
  void event(const EventRecord& e) override {
    static const std::map<RequestEvent, const char*> kShown{{RequestEvent::kPreempted, "preempted"},
                                                            {RequestEvent::kSwappedOut, "swapped out"},
                                                            {RequestEvent::kSwappedIn, "swapped in"},
                                                            {RequestEvent::kFinished, "finished"},
                                                            {RequestEvent::kRejected, "rejected"}};
    const auto shown = kShown.find(e.event);
    if (shown == kShown.end()) return;
    lines.push_back(fmt::format("{:.3f} {} {}", static_cast<double>(ns(e.at)) * 1e-6, e.request, shown->second));
  }
  std::vector<std::string> lines;
};

struct Golden {
  std::string name, scheduler, parameters;
};

// 12 blocks of 4 tokens; a step takes 1 ms, a block 0.25 ms to swap. Request 6 fills the memory to the last block, request 10
// is longer than max_model_len.
std::vector<std::string> log_of(const Golden& golden) {
  SimSetup setup = basic_setup(golden.scheduler, golden.parameters);
  setup.memory.num_blocks = 12;
  setup.memory.block_tokens = 4;
  setup.memory.block_bytes = 0;
  setup.memory.host_blocks = 8;
  setup.memory.prefix_caching = false;
  setup.swap_link.call_time = Span(250'000);
  setup.max_model_len = 48;
  setup.timeline_interval = Span{0};
  setup.make_cost_model = linear_cost({.step = Picoseconds{1'000'000'000}, .token = {}, .kv_token = {}, .cell = 1 << 30});
  StepLog log;
  run_into(log, setup,
           {request_at(0, 8, 6), request_at(0, 14, 4), request_at(0.5, 5, 3), request_at(0.5, 20, 2), request_at(2.2, 4, 8),
            request_at(3.1, 8, 1), request_at(3.1, 46, 1), request_at(6.5, 12, 5), request_at(12.4, 3, 3), request_at(12.4, 16, 2),
            request_at(12.4, 60, 1), request_at(30, 9, 8), request_at(30, 9, 8), request_at(30, 9, 8), request_at(30, 9, 8)});
  return log.lines;
}

struct GoldenFile {
  std::vector<std::string> lines;                             // of the log
  std::vector<std::pair<std::string, std::string>> comments;  // and the line after each
};

GoldenFile read(const std::string& path) {
  GoldenFile file;
  std::ifstream in(path);
  std::string line, comment;
  while (std::getline(in, line)) {
    if (line.starts_with("#")) {
      comment += line + "\n";
      continue;
    }
    if (!comment.empty()) file.comments.emplace_back(std::exchange(comment, ""), line);
    file.lines.push_back(line);
  }
  return file;
}

void write(const std::string& path, const GoldenFile& old, const std::vector<std::string>& lines) {
  std::map<std::string, std::string> before;
  for (const auto& [comment, line] : old.comments) before[line] += comment;
  std::ofstream out(path);
  for (const std::string& line : lines) {
    if (const auto found = before.find(line); found != before.end()) {
      out << found->second;
      before.erase(found);
    }
    out << line << "\n";
  }
  for (const auto& [line, comment] : before) fmt::print("{}: dropped, its line is gone ({}):\n{}", path, line, comment);
}

class GoldenLog : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenLog, Matches) {
  const std::string path = std::string(KVLAB_SOURCE_DIR) + "/tests/sim/golden/" + GetParam().name + ".txt";
  const std::vector<std::string> lines = log_of(GetParam());
  const GoldenFile golden = read(path);
  if (std::getenv("KVLAB_UPDATE_GOLDEN") != nullptr) return write(path, golden, lines);
  ASSERT_FALSE(golden.lines.empty()) << path << " is missing; KVLAB_UPDATE_GOLDEN=1 writes it";
  for (std::size_t i = 0; i < std::min(lines.size(), golden.lines.size()); ++i)
    ASSERT_EQ(lines[i], golden.lines[i]) << path << ", log line " << i + 1;
  EXPECT_EQ(lines.size(), golden.lines.size()) << path;
}

INSTANTIATE_TEST_SUITE_P(
    Schedulers, GoldenLog,
    ::testing::Values(
        Golden{"static", "static", "{max_batch_seqs: 4, max_len_tokens: 16}"},
        Golden{"static_window", "static", "{max_batch_seqs: 4, max_len_tokens: 16, window_ms: 5}"},
        Golden{"orca_oracle", "orca", "{reservation: oracle}"}, Golden{"orca_pow2", "orca", "{reservation: pow2}"},
        Golden{"vllm_v0_watermark", "vllm_v0", "{watermark_frac: 0.1}"}, Golden{"vllm_v0_recompute", "vllm_v0", "{watermark_frac: 0}"},
        Golden{"vllm_v0_swap", "vllm_v0", "{watermark_frac: 0, preemption: swap}"},
        Golden{"vllm_v1_sync", "vllm_v1", "{budget_tokens: 16, async_scheduling: false}"},
        Golden{"vllm_v1_async", "vllm_v1", "{budget_tokens: 16}"}, Golden{"sarathi", "sarathi", "{budget_tokens: 16, watermark_frac: 0.1}"},
        Golden{"sarathi_2023", "sarathi", "{budget_tokens: 16, watermark_frac: 0, version: decode_maximal}"},
        Golden{"fastgen", "fastgen", "{forward_tokens: 16}"}, Golden{"sglang", "sglang", "{chunk_tokens: 16}"},
        Golden{"sglang_trusting", "sglang", "{chunk_tokens: 16, clip_tokens: 1, init_ratio: 0}"},
        Golden{"sglang_mixed", "sglang", "{chunk_tokens: 16, clip_tokens: 1, init_ratio: 0, mixed_chunk: true, overlap: false}"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvlab::testing
