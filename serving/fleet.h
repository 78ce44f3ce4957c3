#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serving/arrivals.h"
#include "serving/dispatch.h"
#include "serving/encoders.h"
#include "serving/event_queue.h"
#include "serving/metrics.h"
#include "serving/replicas.h"
#include "serving/timeline_sampling.h"
#include "serving/transfers.h"

namespace kvlab {

// Requests that the dispatcher holds, first come, first served, by the replica with the step that asks again.
class HeldRequests {
 public:
  struct Held {
    Dispatch::Question question;
    std::uint32_t rank = 0;       // kDecode: has it as an export,
    RequestId slot = kNoRequest;  // in this slot
    static constexpr std::uint32_t kNoJob = UINT32_MAX;
    std::uint32_t job = kNoJob;  // kPrefill: its encoded images (Encoders)
  };
  explicit HeldRequests(std::uint32_t num_replicas) : lists_(num_replicas + 1) {}

  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // kNoReplica: any replica of the stage.
  std::deque<Held>& of(ReplicaId replica) { return lists_[slot_of(replica)]; }
  void add(ReplicaId replica, const Held& held) {
    of(replica).push_back(held);
    ++size_;
  }
  Held take_first(ReplicaId replica) {
    const Held held = of(replica).front();
    of(replica).pop_front();
    --size_;
    return held;
  }
  void put_back(ReplicaId replica, const Held& held) {
    of(replica).push_front(held);
    ++size_;
  }
  [[nodiscard]] const std::vector<std::deque<Held>>& lists() const { return lists_; }

 private:
  [[nodiscard]] std::size_t slot_of(ReplicaId replica) const { return replica == kNoReplica ? lists_.size() - 1 : index(replica); }

  std::vector<std::deque<Held>> lists_;  // by replica; last: any
  std::size_t size_ = 0;
};

// One serving run. With deterministic clock and devices, equal setup, trace and build give equal results, byte for byte, with or without
// fast-forward.
class Fleet final {
 public:
  // All arguments outlive the object.
  Fleet(const HostSetup& setup, const MakeDevice& make_device, Clock& clock, TraceSource& trace, RunSink& sink);

  // Call once. Throws InputError if requests wait forever, the clock ends, or a device refuses.
  ServingSummary run();

  // rank: over all replicas.
  [[nodiscard]] const ReplicaState& state(std::uint32_t rank) const { return replicas_.state(rank); }
  // Complete after run().
  [[nodiscard]] StepTotals totals() const;
  [[nodiscard]] StepTotals totals(std::uint32_t pool) const;

 private:
  bool step(Picoseconds stop);
  void run_to_end(Picoseconds stop);
  void handle(const Event& event, Picoseconds next_root);

  // ---- arrivals and stages (fleet_stages.cpp) ----
  void arrive(const TraceRequest& request, Picoseconds at);
  // `rank`: of the replica that gets the request.
  void receive(const TraceRequest& request, Time arrival, const Placement& placement, std::uint32_t rank, Picoseconds at,
               bool prefill_only);
  void ask_for_decode(std::uint32_t rank, RequestId slot, Picoseconds at);
  [[nodiscard]] std::optional<ReplicaId> place(const HeldRequests::Held& request, Picoseconds at);
  void send(const HeldRequests::Held& request, const Placement& placement, Picoseconds at);
  void send_on(const HeldRequests::Held& request, ReplicaId to, Picoseconds at);
  void refuse(const HeldRequests::Held& request, const char* reason, Picoseconds at);
  void hold(const HeldRequests::Held& request, ReplicaId replica, Picoseconds at);
  void ask_again(Picoseconds at);
  void ask_again(ReplicaId replica, Picoseconds at);
  void watch_all();
  void catch_up(ReplicaId replica, Picoseconds at);
  void catch_up_all(Picoseconds at);
  void on_timer(Picoseconds at);
  // Events other than samples and timers are left.
  [[nodiscard]] bool has_more() const { return arrivals_.next_root() != Arrivals::kNoMore || queue_.size() > num_clock_events_; }
  void queue_clock_event(Picoseconds at, Phase phase, EventKind kind);
  void note_outputs(ReplicaId replica);
  [[nodiscard]] std::uint64_t num_outputs(ReplicaId replica);
  [[nodiscard]] std::uint32_t choose_rank(ReplicaId replica, Picoseconds at);

  // ---- the store of prompts (fleet_stores.cpp) ----
  [[nodiscard]] std::optional<PromptStores> stores_of(const TraceRequest& prompt, const Placement& placement, std::uint32_t rank,
                                                      Picoseconds at);
  void note_store(const Replica& replica, Picoseconds at);
  void give_back(const KvOffer& prefix);
  void add_stores(ServingSummary& summary) const;
  void check_stores() const;

  // ---- images (fleet_images.cpp) ----
  void encode(const TraceRequest& request, Picoseconds at);
  void ask_for_prefill(std::uint32_t job, Picoseconds at);
  void send_embeddings(std::uint32_t job, const Placement& placement, bool prefill_only, Picoseconds at);
  void receive_encoded(std::uint32_t job, Picoseconds at);

  // ---- records ----
  void collect(Replica& replica, Picoseconds at);
  void leave(const Departure& record, Picoseconds at);
  void settle_offers(ReplicaState& state, Picoseconds at);
  void cut_idle_time(Picoseconds at);
  [[nodiscard]] std::string skipped() const;
  void count_in_groups(const RequestRecord& record, Time cut_off, double qoe);
  // ---- samples and totals ----
  bool sample(Picoseconds at);
  ServingSummary finish();
  void add_totals(ServingSummary& summary, Picoseconds duration) const;
  void add_pools(ServingSummary& summary) const;

  const HostSetup& setup_;
  Clock& clock_;
  TraceSource& trace_;
  RunSink& sink_;
  EventQueue queue_;
  Arrivals arrivals_;
  MetricsCollector metrics_;
  GroupMetrics groups_;
  Transfers transfers_;
  FleetContext context_;
  Replicas replicas_;
  Encoders encoders_;
  std::unique_ptr<Dispatch> dispatch_;  // for several replicas, or encode replicas
  HeldRequests held_;
  TimelineSampling sampling_;
  std::vector<std::uint64_t> outputs_seen_;  // by replica: outputs at the latest ask
  std::vector<std::uint64_t> stores_seen_;   // by replica: NodeStore::changes() that all replicas know
  bool asks_pending_ = false;                // held requests are asked about at this instant
  std::size_t num_clock_events_ = 0;         // queued samples and timers
  std::uint32_t idle_timers_ = 0;
  bool keeps_hashes_ = false;  // a replica has a prefix cache
  std::vector<ReplicaState::Counters> last_counted_;
  std::string first_rejection_;
  std::uint64_t events_ = 0;
  std::uint64_t num_idle_cuts_ = 0;
  Picoseconds first_arrival_, now_, idle_cut_;
};

}  // namespace kvlab
