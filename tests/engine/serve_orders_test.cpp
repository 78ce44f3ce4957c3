// Orders and predictors do the same in both hosts: on a clock on which steps take as long as a cost model says, and on the times that steps
// of the engine took in real time.
#include <fmt/format.h>

#include "engine/serve/engine_device.h"
#include "serving/fleet.h"
#include "tests/drawn_orders.h"
#include "tests/engine/serve_simulated.h"

namespace kvlab::test {
namespace {

// A run of the engine in real time, and the simulator's loop on the times that it took.
//
// Real time enters a run in two places: Clock::now(), which the loop asks when a plan may begin, and the start and end of each step.
// Arrivals take their place among the other events by the trace's times, whenever the thread came to look at them. So the values of
// Clock::now(), in order, and the times of the steps are all that a repetition needs.

// "7:0+64 3:12+1": the number of each request, its tokens computed before, and those of the step.
std::string entries_of(const StepPlan& plan, const ReplicaState& state) {
  std::string text;
  for (const StepEntry& entry : plan.entries)
    text += fmt::format("{}{}:{}+{}", text.empty() ? "" : " ", state.table()[entry.request].number, entry.computed_before, entry.tokens);
  return text;
}

// All that a run delivers, in text that can be compared.
struct RunLog final : RunSink {
  void request(const RequestRecord& r) override { requests.push_back(r); }
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& s, const ReplicaState& state) override {
    steps.push_back({s.planned, s.start, s.end, entries_of(s, state)});
  }
  void event(const EventRecord& e) override {
    events.push_back(fmt::format("{} ns, request {}: {}", ns(e.at - kStart), e.request, static_cast<int>(e.event)));
  }

  struct Step {
    Picoseconds planned{}, start{}, end{};
    std::string entries;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps;
  std::vector<std::string> events;
  std::vector<RequestRecord> requests;
};

struct ClockReading {
  Picoseconds asked{}, given{};
};

// The lane's clock, whose readings are kept.
class RecordedClock final : public Clock {
 public:
  explicit RecordedClock(std::vector<ClockReading>& readings) : lane_({}), readings_(readings) {}
  void start(StepLane& lane) { lane_.start(lane); }
  void reach(Picoseconds at) override { lane_.reach(at); }
  [[nodiscard]] Picoseconds now(Picoseconds at) override {
    readings_.push_back({at, lane_.now(at)});
    return readings_.back().given;
  }

 private:
  LaneClock lane_;
  std::vector<ClockReading>& readings_;
};

struct MeasuredRun {
  RunLog log;
  std::vector<ClockReading> readings;
  ServingSummary summary;
};

// As serve() does it.
MeasuredRun measured_run(const ServeSetup& setup, const std::vector<SomeRequest>& requests) {
  MeasuredRun run;
  EngineDevice* device = nullptr;
  const MakeDevice make_device = [&](std::size_t /*pool*/) {
    auto made = std::make_unique<EngineDevice>(setup);
    device = made.get();
    return made;
  };
  RecordedClock clock(run.readings);
  SomeTrace trace(requests);
  Fleet fleet(setup, make_device, clock, trace, run.log);
  clock.start(device->lane());
  run.summary = fleet.run();
  device->end();
  return run;
}

// The first place at which a repetition is not what was recorded; "" until there is one. From then on nothing recorded is used.
struct Deviation {
  std::string first;
  void note(std::string text) {
    if (first.empty()) first = std::move(text);
  }
  [[nodiscard]] bool is_found() const { return !first.empty(); }
};

class ReplayedClock final : public Clock {
 public:
  ReplayedClock(const std::vector<ClockReading>& readings, Deviation& deviation) : readings_(readings), deviation_(deviation) {}
  [[nodiscard]] Picoseconds now(Picoseconds at) override {
    if (deviation_.is_found()) return at;
    if (next_ < readings_.size() && readings_[next_].asked == at) return readings_[next_++].given;
    deviation_.note(fmt::format("question {} to the clock is about {} ps", next_, at.count()));
    return at;
  }

 private:
  const std::vector<ClockReading>& readings_;
  Deviation& deviation_;
  std::size_t next_ = 0;
};

// Its steps take the recorded times; after a deviation, a made-up one.
class ReplayedDevice final : public Device {
 public:
  ReplayedDevice(const std::vector<RunLog::Step>& steps, Deviation& deviation) : steps_(steps), deviation_(deviation) {}
  void attach(ReplicaState& state, const Scheduler& /*scheduler*/) override { state_ = &state; }
  // As on the engine's device, where a later step finds every copy done.
  Picoseconds copy(const SwapCopy& /*copy*/, Picoseconds at) override { return at; }
  bool begin(InFlightStep& step, Picoseconds at) override {
    const std::string entries = entries_of(step, *state_);
    const bool is_same = next_ < steps_.size() && steps_[next_].planned == step.planned && steps_[next_].entries == entries;
    if (!is_same) deviation_.note(fmt::format("step {} is {}, planned at {} ps", next_, entries, step.planned.count()));
    if (deviation_.is_found()) {
      step.start = std::max(at, last_end_);
      step.end = step.start + Picoseconds{1'000'000'000};
    } else {
      step.start = steps_[next_].start;
      step.end = steps_[next_++].end;
    }
    last_end_ = step.end;
    return true;
  }

 private:
  const std::vector<RunLog::Step>& steps_;
  Deviation& deviation_;
  const ReplicaState* state_ = nullptr;
  std::size_t next_ = 0;
  Picoseconds last_end_;
};

// Repeats a run. Returns the first deviation, "" if there is none.
std::string replay(const HostSetup& setup, const std::vector<SomeRequest>& requests, const MeasuredRun& measured, RunLog& log) {
  Deviation deviation;
  ReplayedClock clock(measured.readings, deviation);
  const MakeDevice make_device = [&](std::size_t /*pool*/) { return std::make_unique<ReplayedDevice>(measured.log.steps, deviation); };
  SomeTrace trace(requests);
  Fleet fleet(setup, make_device, clock, trace, log);
  fleet.run();
  return deviation.first;
}

struct OrderCase {
  std::string order, options = "{}", predictor = "exact", predictor_options = "{}";
};

std::vector<OrderCase> order_cases() {
  std::vector<OrderCase> cases = {{"fcfs"},
                                  {"priority"},
                                  {"priority", "{preemptive: true}"},
                                  {"srpt", "{preemption: recompute}"},
                                  {"mlfq", "{quantum_ms: 0.2, starvation_ms: 20, scan_steps: 5}"},
                                  {"mlfq", "{quantum_ms: 3, starvation_ms: 0, preemption: recompute}"},
                                  {"vtc"},
                                  {"vtc", "{charge_predicted: true}", "history", "{first_tokens: 8}"},
                                  {"andes", "{ttft_ms: 5, horizon_s: 0.2, pressure_frac: 0.3, renewals: 4}"},
                                  {"edf"},
                                  {"longest_prefix"},
                                  {"longest_prefix", "{most_waiting: 3}"},
                                  {"alise", "{first_queue_ms: 5, age_s: 0.02}"},
                                  {"alise", "{first_queue_ms: 20, age_s: 1, preemption: recompute}", "lognormal", "{sigma: 1}"},
                                  {"alise", "{first_queue_ms: 5, age_s: 0.02, preemption: keep, swap_ahead_blocks: 4}"},
                                  {"etc_u", "{confidence_scale: 0}"},
                                  {"etc_rr", "{confidence_scale: 0, quantum_steps: 2}"},
                                  {"ucb_u"},
                                  {"ucb_rr", "{quantum_steps: 2, preemption: recompute}"},
                                  {"longest_output"},
                                  {"random"},
                                  {"dfs_weight"},
                                  {"dfs_weight", "{most_waiting: 3}"},
                                  {"fastswitch_priority", "{frequency: 0.1}"}};
  for (const auto& [predictor, options] :
       std::vector<std::pair<std::string, std::string>>{{"bucket", "{max_output_tokens: 32, buckets: 4, accuracy_frac: 0.5}"},
                                                        {"lognormal", "{sigma: 1}"},
                                                        {"confusion", "{file: " + confusion_file() + "}"},
                                                        {"history", "{per: class, first_tokens: 8}"}}) {
    cases.push_back({"sjf", "{}", predictor, options});
    cases.push_back({"srpt", "{preemption: swap}", predictor, options});
  }
  return cases;
}

const std::vector<std::pair<std::string, std::string>>& schedulers() {
  static const std::vector<std::pair<std::string, std::string>> all = {{"vllm_v1", "{budget_tokens: 64, max_num_seqs: 3}"},
                                                                       {"sarathi", "{budget_tokens: 48, max_num_seqs: 3}"},
                                                                       {"vllm_v0", "{max_num_seqs: 3, preemption: swap}"},
                                                                       {"fastgen", "{forward_tokens: 64, max_num_seqs: 3}"}};
  return all;
}

// Six at once, and four while these run; three clients, two classes, four priorities, and targets. Half of them begin alike.
std::vector<SomeRequest> requests_with_facts() {
  std::vector<SomeRequest> requests;
  for (std::int32_t i = 0; i < 10; ++i) {
    SomeRequest r{i < 6 ? 0 : 2.0 * (i - 5), 24 + 13 * (i % 5) + 20 * (i % 3), 4 + 5 * (7 * i % 4) + i % 3, 16};
    if (i % 2 == 0) r = with_hashes(r, i, 2);
    RequestFacts facts;
    facts.client = i % 3;
    facts.request_class = ClassName(i % 4 == 0 ? "batch" : "chat");
    facts.priority = 7 * (9 - i) % 4;
    facts.ttft_slo = Span(1'000'000 * (1 + 5 * (9 - i) % 7));
    facts.tpot_slo = Span(2'000'000);
    r.facts = facts;
    requests.push_back(r);
  }
  return requests;
}

ServeSetup setup_of(const EngineModel& model, const Recipe& recipe, const std::pair<std::string, std::string>& scheduler,
                    const OrderCase& c) {
  constexpr std::int64_t kBlocks = 16;
  ServeSetup setup = serve_setup(model, recipe, scheduler.first, scheduler.second, kBlocks);
  setup.make_order = maker<OrderRegistry>(c.order, c.options, "order");
  setup.make_predictor = maker<PredictorRegistry>(c.predictor, c.predictor_options, "predictor");
  return setup;
}

std::string text_of(const std::pair<std::string, std::string>& scheduler, const OrderCase& c) {
  return fmt::format("{} {}, {} {}, {} {}", scheduler.first, scheduler.second, c.order, c.options, c.predictor, c.predictor_options);
}

bool can_run(const ServeSetup& setup) { return !setup.make_order()->overtaking() || setup.make_scheduler()->lets_overtake(); }

TEST(ServeOrders, RecordsAreTheSimulators) {
  const Recipe full = load_recipe("full");
  const std::vector<SomeRequest> requests = requests_with_facts();
  std::uint64_t preemptions = 0, swaps = 0;
  for (const auto& scheduler : schedulers()) {
    for (const OrderCase& c : order_cases()) {
      SCOPED_TRACE(text_of(scheduler, c));
      ServeSetup setup = setup_of(small_model(), full, scheduler, c);
      if (!can_run(setup)) continue;
      setup.inspect = expect_explained_pages;
      const Served served = serve_as_simulated(setup, requests);
      EXPECT_EQ(served.summary.latencies.completed, requests.size()) << served.summary.first_rejection;
      preemptions += served.summary.preemptions, swaps += served.summary.swaps;
    }
  }
  EXPECT_GT(preemptions, 0U);
  EXPECT_GT(swaps, 0U);
}

struct Seen {
  std::uint64_t preemptions = 0, swaps = 0;
  int runs = 0, other_plans = 0;
};

// Serves in real time and repeats the run; then under first come, first served, on the same times.
void serve_and_replay(const ServeSetup& setup, Seen& seen) {
  const std::vector<SomeRequest> requests = requests_with_facts();
  const MeasuredRun measured = measured_run(setup, requests);
  EXPECT_EQ(measured.summary.latencies.completed, requests.size()) << measured.summary.first_rejection;
  RunLog replayed;
  EXPECT_EQ(replay(setup, requests, measured, replayed), "");
  EXPECT_EQ(std::tuple(replayed.steps.size(), replayed.events), std::tuple(measured.log.steps.size(), measured.log.events));
  expect_same(replayed.requests, measured.log.requests);
  ServeSetup unordered = setup;
  unordered.make_order = nullptr;
  RunLog other;
  seen.other_plans += replay(unordered, requests, measured, other).empty() ? 0 : 1;
  ++seen.runs;
  seen.preemptions += measured.summary.preemptions, seen.swaps += measured.summary.swaps;
}

// All on a model that runs in no time, and every eighth on the probe.
TEST(ServeOrders, PlansOfTheEngineAreTheSimulatorsOnTheSameTimes) {
  const Recipe full = load_recipe("full");
  const std::vector<OrderCase> cases = order_cases();
  Seen seen;
  for (std::size_t s = 0; s < schedulers().size(); ++s) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (short_run() && (i + s) % 4 != 0) continue;
      SCOPED_TRACE(text_of(schedulers()[s], cases[i]));
      const EngineModel& model = (i + 5 * s) % 8 == 0 ? served_model() : small_model();
      ServeSetup setup = setup_of(model, full, schedulers()[s], cases[i]);
      if (!can_run(setup)) continue;
      setup.nominal_time = nullptr;
      serve_and_replay(setup, seen);
    }
  }
  EXPECT_GT(seen.preemptions, 0U);
  EXPECT_GT(seen.swaps, 0U);
  EXPECT_GT(seen.other_plans, seen.runs / 3) << "the comparison sees that another order plans something else";
}

}  // namespace
}  // namespace kvlab::test
