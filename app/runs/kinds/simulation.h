#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/results/run_files.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/report/summary_row.h"
#include "app/runs/sweep/progress.h"
#include "serving/host_setup.h"
#include "serving/metrics.h"

namespace kvlab {

// null: drops records.
class ForwardingSink : public RunSink {
 public:
  explicit ForwardingSink(RunSink* next) : next_(next) {}
  void request(const RequestRecord& record) override { next().request(record); }
  void sample(const TimelineSample& sample) override { next().sample(sample); }
  [[nodiscard]] bool wants_steps() const override { return next_ != nullptr && next_->wants_steps(); }
  void step(const InFlightStep& step, const ReplicaState& state) override { next().step(step, state); }
  void event(const EventRecord& event) override { next().event(event); }
  void transfer(const TransferRecord& record) override { next().transfer(record); }

 private:
  RunSink& next() { return next_ != nullptr ? *next_ : nothing_; }
  RunSink* next_;
  RunSink nothing_;
};

class WaitWatch final : public ForwardingSink {
 public:
  // next: null drops records.
  WaitWatch(const HostSetup& setup, RunSink* next);
  // "request_slots": the step has the scheduler's maximum of requests. "kv_memory": otherwise, if fewer than 10 % of KV blocks are free or
  // only cached. "steps": neither. The most frequent over samples with waiting requests, or "".
  [[nodiscard]] std::string waits_for() const;

  void sample(const TimelineSample& sample) override;

 private:
  struct PoolLimits {
    std::uint32_t ranks = 1;        // over its replicas
    std::int64_t most_running = 0;  // per step; 0: no limit
  };
  [[nodiscard]] const PoolLimits& limits_of(std::uint32_t rank) const;

  std::vector<PoolLimits> pools_;
  std::array<std::uint64_t, 3> counts_{};
};

// Counts records, and throws Interrupted on request.
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

// Requests are neither written nor counted.
inline WatchedSink unseen(const RunOptions& options) { return {nullptr, {options.fast_forward, options.stop, nullptr, {}, false}}; }

// The first pass yields the oracle block cache's future lookups.
RunSummary simulate_with_oracle(SimSetup setup, const OpenTrace& open, RunSink& sink, const RunOptions& options);

// `host: sim`. Base of serving by the engine.
class SimulationRun : public PreparedRun {
 public:
  // check: called before reading the trace.
  SimulationRun(RunKind& kind, Params& p, std::uint64_t seed, const std::function<void(Params&, ServingPlan&)>& check = {});
  // Replays the KV policy if there are samples.
  Findings run(RunFiles& files, const RunOptions& options) final;
  [[nodiscard]] std::string out_of_memory() const override;
  [[nodiscard]] std::unique_ptr<TraceSource> only_draws(std::uint64_t seed) const override;
  [[nodiscard]] Comparisons comparisons() const override { return plan_.comparisons; }
  [[nodiscard]] bool times_policy() const override;

 protected:
  virtual Findings serve(RunFiles& files, const RunOptions& options);
  // Sets the rate to load_frac of the throughput with all requests present at the start. Returns its fields.
  Fields apply_load(const RunOptions& options);
  void describe_costs(const std::string& label, nlohmann::ordered_json& manifest) const;
  ServingPlan plan_;

 private:
  [[nodiscard]] bool writes(const std::string& table) const override;
  [[nodiscard]] Bill bill(const RunSummary& summary) const;
  void add_cost_remarks(const RunSummary& summary, Findings& findings) const;
  [[nodiscard]] nlohmann::ordered_json pools_of(const RunSummary& summary) const;
  void add_pool_tables(const RunSummary& summary, RunFiles& files) const;
  // Returns the best plan's run.
  RunSummary search(RunFiles& files, const RunOptions& options, Findings& findings);
  // With another searched value. Throws InputError if the model does not fit at a tp.
  [[nodiscard]] ServingPlan plan_at(double value) const;
  [[nodiscard]] Probe probe(double value, const RunOptions& options) const;
  // Adds the run's row. next: the probe with the binding limits; null: the run's own.
  RunSummary run_plan(RunFiles& files, const RunOptions& options, const Probe* next, Findings& findings);

  Params p_;
  double native_per_s_ = 0;  // the trace's, if a search sets another
  bool has_found_ = false;
};

class Simulation : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) override { return std::make_unique<SimulationRun>(*this, p, seed); }
  [[nodiscard]] std::set<std::string> tables() const override {
    return {"requests.csv", "timeline.csv",  "search.csv", "service.csv", "request_groups.csv",
            "trace.json",   "transfers.csv", "links.csv",  "pools.csv",   "stores.csv"};
  }
  // Adds schedulers' limits and credibility.
  void report(const SweepReport& report, std::ostream& out) const final;

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override;
};

}  // namespace kvlab
