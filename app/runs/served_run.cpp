#include "app/runs/served_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/runs/served_model.h"
#include "engine/serve/serve.h"
#include "kernels/cuda/memory.h"
#include "sim/pricing.h"

namespace kvlab {

namespace {

// Prices what was run, step by step, and keeps both times.
class StepLog {
 public:
  StepLog(const RunPlan& plan, std::string run_id)
      : run_id_(std::move(run_id)),
        scheduler_(plan.setup.make_scheduler()),
        cost_(plan.setup.make_cost_model()),
        pricer_(*cost_, *scheduler_) {}

  void add(const InFlightStep& step, std::size_t waiting) {
    const Picoseconds predicted = pricer_.price(step).total;
    const StepShape& shape = pricer_.shape();
    std::int64_t tokens = 0, prefill_kv = 0;
    for (const StepEntry& entry : step.entries) tokens += entry.tokens;
    for (const PrefillPiece& piece : shape.prefills) prefill_kv += piece.kv_before;
    text_ += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", run_id_, step.number, ns(step.planned), ns(step.start), ns(step.end),
                         ns(step.end - step.start), ns(predicted), step.entries.size(), tokens, shape.decodes, shape.decode_kv_tokens,
                         prefill_kv, waiting);
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

// Tokens of the trace's longest request, of as many as a look at it takes no time for; 0: it has none.
std::int32_t longest_request(const RunPlan& plan) {
  constexpr int kMostRequests = 1'000'000;
  const std::unique_ptr<TraceSource> trace = plan.open_trace();
  TraceRequest request;
  std::int32_t longest = 0;
  for (int i = 0; i < kMostRequests && trace->next(request); ++i)
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  return longest;
}

ServeSetup serve_setup(const RunPlan& plan, const EngineModel& model) {
  ServeSetup serve;
  serve.model = &model;
  serve.recipe = &*plan.recipe;
  const HostSetup& shared = plan.setup;
  static_cast<HostSetup&>(serve) = shared;
  serve.temperature = static_cast<float>(plan.temperature);
  if (plan.served.backend == "cuda") serve.longest_tokens = longest_request(plan);
  serve.stays_awake = plan.stays_awake && plan.served.backend == "cpu";
  return serve;
}

}  // namespace

ServedFindings serve_run(const RunPlan& plan, const std::string& run_id, RunSink& sink, const std::function<void()>& each_turn) {
  const EngineModel& model = shared_model(plan.served);
  StepLog log(plan, run_id);
  ServeSetup setup = serve_setup(plan, model);
  setup.each_turn = each_turn;
  setup.step_done = [&](const InFlightStep& step, std::size_t waiting) { log.add(step, waiting); };
  RunSummary summary;
  static_cast<ServingSummary&>(summary) = serve(setup, *plan.open_trace(), sink);
  ServedFindings findings;
  findings.fields = summary_fields(summary, plan.setup, /*is_simulated=*/false);
  findings.label = fmt::format("step times measured by the engine on {}{}; KV blocks {}; overload {:.1f} % of time", plan.served.text(),
                               plan.served.backend == "cuda" ? " with " + gpu_info(0).name : "",
                               plan.setup.memory.is_derived ? "derived" : "given", 100 * summary.overload_frac);
  findings.note = remarks_on(summary);
  findings.skipped = summary.skipped;
  findings.not_served = not_served(summary);
  findings.steps_csv = log.text();
  return findings;
}

}  // namespace kvlab
