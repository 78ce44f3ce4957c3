#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/run_files.h"
#include "app/runs/bill.h"
#include "app/runs/forwarding_sink.h"
#include "app/runs/progress.h"
#include "app/runs/run_kind.h"
#include "app/runs/serving_plan.h"

namespace kvlab {

// Passes a run's records on, counts them for the progress bar, and ends the run when the user asks.
class WatchedSink final : public ForwardingSink {
 public:
  WatchedSink(RunSink* files, RunOptions options, ServingProgress* progress = nullptr)
      : ForwardingSink(files), options_(std::move(options)), progress_(progress) {}
  void request(const RequestRecord& record) override {
    options_.check_stop();
    if (options_.requests_done != nullptr) options_.requests_done->fetch_add(1, std::memory_order_relaxed);
    if (progress_ != nullptr) progress_->request_done();
    ForwardingSink::request(record);
  }

 private:
  RunOptions options_;
  ServingProgress* progress_;
};

// A sink for a simulation beside the run's own: its requests are neither written nor counted.
inline WatchedSink unseen(const RunOptions& options) { return {nullptr, {options.fast_forward, options.stop, nullptr, {}, false}}; }

// An oracle block cache is run twice: the lookups of the first pass are the future of the second.
RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, RunSink& sink, const RunOptions& options);

// A request trace through simulated serving: `host: sim`. The engine serves what is read in the same way and derives from it.
class SimulationRun : public PreparedRun {
 public:
  // check: called before the trace is read.
  SimulationRun(RunKind& kind, Params& p, std::uint64_t seed, const std::function<void(Params&, ServingPlan&)>& check = {});
  // Serves the trace, and replays the KV policy where the experiment has samples.
  Findings run(RunFiles& files, const RunOptions& options) final;
  [[nodiscard]] std::string out_of_memory() const override;
  [[nodiscard]] std::unique_ptr<TraceSource> only_draws(std::uint64_t seed) const override;
  [[nodiscard]] Comparisons comparisons() const override { return plan_.comparisons; }
  [[nodiscard]] bool times_policy() const override;

 protected:
  virtual Findings serve(RunFiles& files, const RunOptions& options);
  // Sets the trace's rate to the plan's share of what is completed when every request is there from the start. Returns the fields on it.
  Fields apply_load(const RunOptions& options);
  // Adds the entries on step times and hardware.
  void describe_costs(const std::string& label, nlohmann::ordered_json& manifest) const;
  ServingPlan plan_;

 private:
  [[nodiscard]] bool writes(const std::string& table) const override;
  [[nodiscard]] Bill bill(const RunSummary& summary) const;
  void add_cost_remarks(const RunSummary& summary, Findings& findings) const;
  [[nodiscard]] nlohmann::ordered_json pools_of(const RunSummary& summary) const;
  void add_pool_tables(const RunSummary& summary, RunFiles& files) const;
  // Finds what `search` asks for, leaves the plan of the best try, and returns its run.
  RunSummary search(RunFiles& files, const RunOptions& options, Findings& findings);
  // The plan with another value of the quantity that is searched. InputError where tp has none, as the model does not fit.
  [[nodiscard]] ServingPlan plan_at(double value) const;
  [[nodiscard]] Probe probe(double value, const RunOptions& options) const;
  // Runs the plan into the run's files and adds its row. next: the try whose limits bind; null: the run's own.
  RunSummary run_plan(RunFiles& files, const RunOptions& options, const Probe* next, Findings& findings);

  Params p_;
  double native_per_s_ = 0;  // arrival rate of the trace, where a search sets another
};

class Simulation : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return std::make_unique<SimulationRun>(*this, p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override {
    return {"requests.csv", "timeline.csv",  "search.csv", "service.csv", "request_groups.csv",
            "trace.json",   "transfers.csv", "links.csv",  "pools.csv",   "stores.csv"};
  }
  // Also prints the schedulers' limits, and how far to trust the step times.
  void report(const SweepReport& report, std::ostream& out) const final;

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override;
};

}  // namespace kvlab
