#pragma once

#include <deque>
#include <queue>
#include <string>
#include <unordered_map>

#include "engine/serve/serve.h"
#include "engine/serve/step_lane.h"
#include "serving/arrivals.h"

namespace kvlab {

// What steps add up to, in picoseconds and counts times picoseconds.
struct ServeTotals {
  std::uint64_t steps = 0;
  double rows = 0, tokens = 0, busy = 0, overload = 0, used_blocks = 0, wasted_tokens = 0, external = 0;
  std::int64_t peak_used_blocks = 0;
};

// One run of the engine. Its loop is the simulator's (sim/replica.cpp) with the clock of a StepLane: it plans while there is room in the
// pipeline, and otherwise waits for the oldest output or the next arrival.
class EngineReplica {
 public:
  // Errors as serve().
  EngineReplica(const ServeSetup& setup, TraceSource& trace, RunSink& sink);
  ServingSummary run();

 private:
  // A job handed over: a step, or copies alone.
  struct Handed {
    InFlightStep step;
    bool is_step = false;
    std::int64_t waiting = 0, used_blocks = 0, wasted_tokens = 0, external_ppm = 0;
  };
  // What the executor knows of a request, as far as jobs handed over say.
  struct Mirror {
    bool has_started = false;
    std::size_t num_blocks = 0;
  };
  struct FollowUp {
    Picoseconds at = 0;
    std::uint64_t order = 0;
    std::uint32_t turn = 0;
    bool operator>(const FollowUp& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  void take_arrivals(Picoseconds now);
  void arrive(const TraceRequest& request, std::uint64_t number, Picoseconds at);
  [[nodiscard]] Picoseconds next_arrival() const;
  void plan(Picoseconds now);
  bool plan_one(Picoseconds now);
  void note_events();
  bool add_swaps();
  void end_swaps(Picoseconds at);
  void fill_job(Handed& handed);
  void hand_over(Handed handed);
  void take_output();
  void collect(Picoseconds at);
  void sample_until(Picoseconds at);
  void count(const Handed& handed);
  void tell_sink(const Handed& handed);
  [[nodiscard]] std::vector<TakenBlock> blocks_from(const Request& r, std::size_t first) const;
  ServingSummary finish();
  void add_totals(ServingSummary& summary, Picoseconds duration) const;

  const ServeSetup& setup_;
  TraceSource& trace_;
  RunSink& sink_;
  std::vector<BlockId> split_;
  std::unique_ptr<Scheduler> scheduler_;
  StepExecutor executor_;
  ReplicaState state_;
  Arrivals arrivals_;
  MetricsCollector metrics_;
  std::unique_ptr<StepLane> lane_;
  Picoseconds stop_;  // the last moment that counts
  StepPlan plan_;
  StepJob job_;  // being put together
  std::deque<Handed> handed_;
  std::vector<RequestId> coming_in_;  // from host memory, by a job handed over or about to be
  int steps_in_flight_ = 0;
  std::unordered_map<std::uint64_t, Mirror> mirrors_;  // by request number
  std::priority_queue<FollowUp, std::vector<FollowUp>, std::greater<>> follow_ups_;
  std::vector<RequestEventRecord> events_;
  StepRecord record_;
  ServeTotals totals_;
  ReplicaState::Counters last_sampled_;
  std::string first_rejection_;
  std::uint64_t next_step_ = 0, follow_up_order_ = 0;
  Picoseconds first_arrival_ = 0, last_output_ = 0, next_sample_ = 0;
};

}  // namespace kvlab
