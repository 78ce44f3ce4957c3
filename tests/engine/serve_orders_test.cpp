// Orders and predictors do the same in both hosts: on a clock on which steps take as long as a cost model says, and on the times that steps
// of the engine took in real time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/drawn_orders.h"
#include "tests/engine/serve_replayed.h"
#include "tests/engine/serve_simulated.h"

namespace kvlab {
namespace {

using test::MeasuredRun;
using test::RunLog;
using test::Served;
using test::SomeRequest;

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
                                                        {"confusion", "{file: " + test::confusion_file() + "}"},
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
    if (i % 2 == 0) r = test::with_hashes(r, i, 2);
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
  ServeSetup setup = test::serve_setup(model, recipe, scheduler.first, scheduler.second, kBlocks);
  setup.make_order = test::maker<OrderRegistry>(c.order, c.options, "order");
  setup.make_predictor = test::maker<PredictorRegistry>(c.predictor, c.predictor_options, "predictor");
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
      ServeSetup setup = setup_of(test::small_model(), full, scheduler, c);
      if (!can_run(setup)) continue;
      setup.inspect = test::expect_explained_pages;
      const Served served = test::serve_as_simulated(setup, requests);
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
  const MeasuredRun measured = test::measured_run(setup, requests);
  EXPECT_EQ(measured.summary.latencies.completed, requests.size()) << measured.summary.first_rejection;
  RunLog replayed;
  EXPECT_EQ(test::replay(setup, requests, measured, replayed), "");
  EXPECT_EQ(std::tuple(replayed.steps.size(), replayed.events), std::tuple(measured.log.steps.size(), measured.log.events));
  test::expect_same(replayed.requests, measured.log.requests);
  ServeSetup unordered = setup;
  unordered.make_order = nullptr;
  RunLog other;
  seen.other_plans += test::replay(unordered, requests, measured, other).empty() ? 0 : 1;
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
      const EngineModel& model = (i + 5 * s) % 8 == 0 ? test::served_model() : test::small_model();
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
}  // namespace kvlab
