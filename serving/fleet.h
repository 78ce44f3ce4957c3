#pragma once

#include <memory>
#include <string>
#include <vector>

#include "policies/router/router.h"
#include "serving/arrivals.h"
#include "serving/event_queue.h"
#include "serving/group_metrics.h"
#include "serving/metrics.h"
#include "serving/replica.h"

namespace kvlab {

// One run of serving, whatever its host: sends arrivals to replicas, orders their events in time and gathers records. Deterministic
// where the clock and the devices are: same setup, trace and build give the same result, byte for byte, with fast-forward on or off.
class Fleet final : public FleetView {
 public:
  // All arguments outlive the object.
  Fleet(const HostSetup& setup, const MakeDevice& make_device, Clock& clock, TraceSource& trace, RunSink& sink);

  // Runs the trace to its end or to the stop rule; once. InputError: requests that wait forever, a clock that ends, and what devices
  // refuse.
  ServingSummary run();

  // rank: its number, counted over all replicas.
  [[nodiscard]] const ReplicaState& state(std::uint32_t rank) const { return replicas_[rank / together_]->rank(rank).state; }
  // Over all replicas, for figures of the devices' own; complete after run().
  [[nodiscard]] StepTotals totals() const;

  [[nodiscard]] std::uint32_t num_replicas() const override { return setup_.num_replicas; }
  [[nodiscard]] std::uint64_t num_arrived() const override { return num_arrived_; }
  [[nodiscard]] ReplicaLoad load(ReplicaId replica) const override;
  [[nodiscard]] std::int64_t cached_tokens(ReplicaId replica) const override;

 private:
  bool step(Picoseconds stop);
  void run_to_end(Picoseconds stop);
  void arrive(const TraceRequest& request, Picoseconds at);
  [[nodiscard]] std::uint32_t route(const TraceRequest& request, Picoseconds at);
  [[nodiscard]] std::uint32_t choose_replica(const TraceRequest& request, Picoseconds at);
  [[nodiscard]] std::uint32_t choose_rank(std::uint32_t replica) const;
  [[nodiscard]] std::uint32_t num_ranks() const { return setup_.num_replicas * setup_.ranks; }
  void collect(Replica& replica, Picoseconds at);
  void count_in_groups(const RequestRecord& record, Time cut_off, double qoe);
  bool sample(Picoseconds at);
  ServingSummary finish();
  void add_totals(ServingSummary& summary, Picoseconds duration) const;

  const HostSetup& setup_;
  Clock& clock_;
  TraceSource& trace_;
  RunSink& sink_;
  EventQueue queue_;
  Arrivals arrivals_;
  MetricsCollector metrics_;
  GroupMetrics groups_;
  std::unique_ptr<Router> router_;                  // where there are several replicas
  std::uint32_t together_;                          // ranks that step together
  std::vector<std::unique_ptr<Replica>> replicas_;  // of so many ranks each
  std::vector<ReplicaState::Counters> last_counted_;
  const TraceRequest* arriving_ = nullptr;
  std::string first_rejection_;
  std::uint64_t num_arrived_ = 0, events_ = 0;
  Picoseconds first_arrival_, now_;
};

}  // namespace kvlab
