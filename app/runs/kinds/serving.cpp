#include <fmt/format.h>

#include <algorithm>

#include "app/runs/accuracy/served_model.h"
#include "app/runs/kinds/simulation.h"
#include "app/runs/plan/kv_memory.h"
#include "app/runs/plan/serving_plan.h"
#include "base/error.h"
#include "engine/serve/serve.h"
#include "kernels/device/cuda/memory.h"
#include "policies/kv/policy/policy.h"
#include "sim/pricing.h"

namespace kvlab {

namespace {

// Prices each executed step and keeps both times.
class StepLog {
 public:
  StepLog(const ServingPlan& plan, std::string run_id)
      : run_id_(std::move(run_id)),
        scheduler_(plan.setup.make_scheduler()),
        cost_(plan.setup.make_cost_model()),
        pricer_(*cost_, *scheduler_) {}

  void add(const InFlightStep& step) {
    const Picoseconds predicted = pricer_.price(step).total;
    const StepShape& shape = pricer_.shape();
    std::int64_t tokens = 0, prefill_kv = 0;
    for (const StepEntry& entry : step.entries) tokens += entry.tokens;
    for (const PrefillPiece& piece : shape.prefills) prefill_kv += piece.kv_before;
    text_ += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", run_id_, step.number, ns(step.planned), ns(step.start), ns(step.end),
                         ns(step.end - step.start), ns(predicted), step.entries.size(), tokens, shape.decodes, shape.decode_kv_tokens,
                         prefill_kv, step.usage.waiting);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string run_id_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<CostModel> cost_;
  StepPricer pricer_;
  std::string text_ =
      "run,step,planned_ns,start_ns,end_ns,measured_ns,predicted_ns,requests,tokens,decodes,decode_kv_tokens,prefill_kv_tokens,waiting\n";
};

// In the first million requests; 0: empty trace.
std::int32_t longest_request(const ServingPlan& plan) {
  constexpr int kMostRequests = 1'000'000;
  const std::unique_ptr<TraceSource> trace = plan.trace.open();
  TraceRequest request;
  std::int32_t longest = 0;
  for (int i = 0; i < kMostRequests && trace->next(request); ++i)
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  return longest;
}

ServeSetup serve_setup(const ServingPlan& plan, const EngineModel& model) {
  ServeSetup serve;
  serve.model = &model;
  serve.recipe = &plan.recipe;
  const HostSetup& shared = plan.setup;
  static_cast<HostSetup&>(serve) = shared;
  serve.temperature = static_cast<float>(plan.temperature);
  if (plan.served.backend == "cuda") serve.longest_tokens = longest_request(plan);
  serve.stays_awake = plan.stays_awake && plan.served.backend == "cpu";
  return serve;
}

void check_served_recipe(const Params& p, const ServingPlan& plan) {
  const ModelConfig& c = plan.served.config;
  const Needs needs =
      KvPolicy(plan.recipe, {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, 4, {c.rope_base, c.rope_scaling}}).needs();
  try {
    require_recipe(plan.served.backend, plan.recipe, needs);
  } catch (const InputError& e) {
    p.fail_at("kv_policy", e.what());
  }
}

// Beyond a simulation's requirements.
void check_serving(Params& p, ServingPlan& plan) {
  if (!plan.setup.pools.empty())
    p.fail_at(p.has("pools") ? "pools" : "system", "the engine serves one replica; pools are simulated, with 'host: sim'");
  if (plan.images) p.fail_at("images", "the engine runs no vision encoder; images are simulated, with 'host: sim'");
  if (plan.setup.num_replicas != 1) p.fail_at("replicas", "the engine serves one replica; 'host: engine' needs 'replicas: 1'");
  if (plan.cost.parallel.gpus() != 1) p.fail_at("parallel", "the engine runs on one device; leave 'parallel' out");
  if (plan.search) p.fail_at("search", "'search' is done by simulation; 'host: engine' runs one rate, for example with 'load_frac'");
  if (plan.setup.make_scheduler()->pads_batches())
    p.fail_at("scheduler",
              "this scheduler pads its batches, which the engine does not run; for 'host: engine' choose another one, for "
              "example 'orca' or 'vllm_v1'");
  if (plan.setup.make_scheduler()->plans_layers())
    p.fail_at("scheduler",
              "this scheduler plans some of the layers, and the engine runs whole steps: choose another scheduler for 'host: engine', for "
              "example vllm_v1, or 'host: sim'");
  check_backend(p, plan.served.backend);
  require_engine(p, plan.recipe);
  if (plan.setup.make_block_cache()->needs_future())
    p.fail_at("block_cache", "the engine cannot know the future, which this cache asks for");
  static_cast<void>(load_recipe("full"));  // the engine warms up with it
  find_served_model(p, plan.cost.model, plan.served);
  check_served_recipe(p, plan);
}

class ServingRun final : public SimulationRun {
 public:
  ServingRun(RunKind& kind, Params& p, std::uint64_t seed) : SimulationRun(kind, p, seed, check_serving) {}
  [[nodiscard]] std::string out_of_memory() const override {
    return fmt::format("out of memory: the engine holds {} KV blocks beside the weights; lower 'memory.num_blocks'",
                       plan_.setup.memory.num_blocks);
  }
  [[nodiscard]] std::unique_ptr<TraceSource> only_draws(std::uint64_t /*seed*/) const override { return nullptr; }  // times are measured
  [[nodiscard]] bool times_policy() const override { return false; }  // a step is measured as a whole

 private:
  Findings serve(RunFiles& files, const RunOptions& options) override {
    const Fields load = apply_load(options);
    ServingProgress progress = expected_progress(files.id(), options);
    WaitWatch watch(plan_.setup, &files);
    WatchedSink sink(&watch, options, &progress);
    const EngineModel& model = shared_model(plan_.served);
    StepLog log(plan_, files.id());
    ServeSetup setup = serve_setup(plan_, model);
    setup.each_turn = [&] { options.check_stop(); };
    setup.step_done = [&](const InFlightStep& step) { log.add(step); };
    RunSummary summary;
    static_cast<ServingSummary&>(summary) = kvlab::serve(setup, *plan_.trace.open(), sink);
    files.add_file("engine_steps.csv", log.text());
    if (plan_.has_facts) files.add_file("service.csv", service_csv(files.id(), summary.groups, plan_.setup.expected_text.has_value()));
    Findings findings;
    findings.rows = {summary_fields(summary, plan_.setup, Bill{}, {1, most_missed_limit(summary.latencies), watch.waits_for()},
                                    /*is_simulated=*/false)};
    findings.rows[0].insert(findings.rows[0].end(), load.begin(), load.end());
    findings.manifest = {{"host", "engine"}, {"served_model", plan_.served.text()}};
    describe_costs(fmt::format("step times measured by the engine on {}{}; KV blocks {}; overload {:.1f} % of time", plan_.served.text(),
                               plan_.served.backend == "cuda" ? " with " + gpu_info(0).name : "",
                               plan_.setup.memory.is_derived ? "derived" : "given", 100 * summary.overload_frac),
                   findings.manifest);
    for (const std::string& remark : remarks_on(summary)) findings.add_note(remark);
    if (const std::string failure = calibration_failure_of(plan_); !failure.empty())
      findings.add_note("the profile FAILED its calibration: " + failure);
    findings.skipped = summary.skipped;
    findings.not_served = not_served(summary);
    return findings;
  }

  // From a simulation; errors only suppress the estimate.
  [[nodiscard]] ServingProgress expected_progress(const std::string& run_id, const RunOptions& options) const {
    double seconds = 0;
    std::int64_t requests = 0;
    try {
      SimSetup setup = plan_.setup;
      setup.timeline_interval = Span{0};
      WatchedSink watched = unseen(options);
      const RunSummary summary = options.say ? simulate_with_oracle(setup, plan_.trace.open, watched, options) : RunSummary{};
      seconds = to_s(summary.duration);
      requests = static_cast<std::int64_t>(summary.requests);
    } catch (const std::exception&) {
    }
    return {options.say, run_id, seconds, requests, options.says_progress};
  }
};

}  // namespace

// `host: engine` with `trace`.
class Serving final : public Simulation {
 public:
  using Simulation::Simulation;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return std::make_unique<ServingRun>(*this, p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override {
    return {"requests.csv", "timeline.csv", "engine_steps.csv", "service.csv", "request_groups.csv", "trace.json"};
  }
  [[nodiscard]] bool runs_engine() const override { return true; }
};

KVLAB_REGISTER(RunKind, Serving, "serving", "a request trace through serving by the engine", "");

}  // namespace kvlab
