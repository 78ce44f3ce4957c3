#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/runs/run_kind.h"
#include "app/runs/serving_plan.h"
#include "app/runs/watched_sink.h"

namespace kvlab {

// A request trace through simulated serving: `host: sim`. The engine serves what is read in the same way and derives from it.
class SimulationRun : public PreparedRun {
 public:
  // check: called before the trace is read.
  SimulationRun(RunKind& kind, Params& p, std::uint64_t seed, const std::function<void(Params&, ServingPlan&)>& check = {});
  // Serves the trace, and replays the KV policy where the experiment has samples.
  Findings run(RunFiles& files, const RunOptions& options) final;
  [[nodiscard]] std::string out_of_memory() const override;
  [[nodiscard]] std::unique_ptr<TraceSource> only_draws() const override;
  [[nodiscard]] Comparisons comparisons() const override { return plan_.comparisons; }

 protected:
  virtual Findings serve(RunFiles& files, const RunOptions& options);
  // Sets the trace's rate to the plan's share of what is completed when every request is there from the start. Returns the fields on it.
  Fields apply_load(const RunOptions& options);
  // Adds the entries on step times and hardware.
  void describe_costs(const std::string& label, nlohmann::ordered_json& manifest) const;
  ServingPlan plan_;

 private:
  [[nodiscard]] bool writes(const std::string& table) const override;
  RunSummary search(RunFiles& files, const RunOptions& options, Findings& findings);

  Params p_;
};

class Simulation : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return std::make_unique<SimulationRun>(*this, p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override { return {"requests.csv", "timeline.csv", "search.csv", "trace.json"}; }
  // Also prints the schedulers' limits, and how far to trust the step times.
  void report(const SweepReport& report, std::ostream& out) const final;

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override;
};

// A sink for a simulation beside the run's own: its requests are neither written nor counted.
WatchedSink unseen(const RunOptions& options);

// An oracle block cache is run twice: the lookups of the first pass are the future that the second is told.
RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, RunSink& sink, const RunOptions& options);

}  // namespace kvlab
