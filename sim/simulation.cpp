#include "sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "serving/arrivals.h"
#include "serving/host_summary.h"
#include "sim/cost/checked_time.h"
#include "sim/event_queue.h"
#include "sim/replica.h"

namespace kvlab {

namespace {

constexpr Picoseconds kNoLimit = INT64_MAX;

// One run: routes arrivals to replicas, drives the clock, gathers records.
class Simulation final : public FleetView {
 public:
  Simulation(const SimSetup& setup, TraceSource& trace, RunSink& sink)
      : setup_(setup),
        trace_(trace),
        sink_(sink),
        arrivals_(trace, setup.stop),
        metrics_(setup.slo, kStart + setup.warmup),
        router_(setup.make_router()) {
    router_->set_seed(setup.seed);
    for (std::uint32_t i = 0; i < setup.num_replicas; ++i) {
      replicas_.push_back(std::make_unique<SimReplica>(setup, i, queue_, sink, metrics_.itl()));
    }
    last_counted_.resize(setup.num_replicas);
  }

  RunSummary run() {
    const Picoseconds stop = setup_.stop.after_time.count() > 0 ? ns(setup_.stop.after_time) * kPsPerNs : kNoLimit;
    if (setup_.timeline_interval.count() > 0) queue_.push(0, Phase::kSample, EventKind::kSample, 0, 0);
    first_arrival_ = arrivals_.next_root() == Arrivals::kNoMore ? 0 : arrivals_.next_root();
    try {
      while (step(stop)) {
#ifdef KVLAB_CHECKS
        for (const auto& replica : replicas_) replica->state().check();
#endif
      }
    } catch (const ClockOverflow& e) {
      throw InputError(fmt::format("the simulated clock ends after 106 days (2^63 ps), and at {:.6g} s of simulated time {}; {}",
                                   static_cast<double>(now_) * 1e-12, e.what(), replicas_.front()->cost().likely_cause()));
    }
    if (stop != kNoLimit && (!queue_.is_empty() || arrivals_.next_root() != Arrivals::kNoMore)) {
      for (const auto& replica : replicas_) replica->catch_up(stop, true);  // up to the very moment, whatever was skipped ahead
    }
    return finish();
  }

  [[nodiscard]] std::uint32_t num_replicas() const override { return setup_.num_replicas; }
  [[nodiscard]] ReplicaLoad load(ReplicaId replica) const override {
    const ReplicaState& state = replicas_[index(replica)]->state();
    ReplicaLoad load;
    load.waiting = static_cast<std::int64_t>(state.num_waiting() + state.num_input());
    load.running = static_cast<std::int64_t>(state.running().size());
    load.outstanding_tokens = state.outstanding_prompt_tokens();
    load.used_blocks = state.used_blocks();
    load.num_blocks = state.num_blocks();
    return load;
  }
  [[nodiscard]] std::int64_t cached_tokens(ReplicaId replica) const override {
    return replicas_[index(replica)]->state().cached_tokens(*arriving_);
  }

 private:
  // The next thing that happens; false when nothing is left.
  bool step(Picoseconds stop) {
    const Picoseconds root = arrivals_.next_root();
    const bool has_event = !queue_.is_empty();
    if (!has_event && root == Arrivals::kNoMore) return false;
    const bool is_root = !has_event || root < queue_.top().at || (root == queue_.top().at && queue_.top().phase >= Phase::kArrive);
    const Picoseconds at = is_root ? root : queue_.top().at;
    if (at > stop) return false;
    now_ = at;
    ++events_;
    if (is_root) {
      TraceRequest request;
      std::uint64_t number = 0;
      arrivals_.take_root(request, number);
      arrive(request, number, at);
      return true;
    }
    const Event event = queue_.pop();
    switch (event.kind) {
      case EventKind::kSample:
        return sample(at);
      case EventKind::kFollowUp: {
        TraceRequest request;
        std::uint64_t number = 0;
        arrivals_.take_follow_up(event.subject, request, number);
        arrive(request, number, at);
        return true;
      }
      default: {
        SimReplica& replica = *replicas_[event.replica];
        replica.handle(event, root);
        collect(replica, at);
        return true;
      }
    }
  }

  void arrive(const TraceRequest& request, std::uint64_t number, Picoseconds at) {
    Arrival arrival{Time(Span(at / kPsPerNs)), arrivals_counted_++, request.session, request.prompt_tokens};
    arriving_ = &request;
    std::uint32_t target = 0;
    if (setup_.num_replicas > 1) {
      if (router_->reads_load()) {
        for (const auto& replica : replicas_) {
          replica->catch_up(at, false);
          collect(*replica, at);
        }
      }
      target = index(router_->route(arrival, *this));
      if (target >= setup_.num_replicas) throw InternalError("the router chose a replica that does not exist");
    }
    SimReplica& replica = *replicas_[target];
    replica.catch_up(at, false);
    replica.receive(request, number, at, arrivals_.keeps_hashes());
    collect(replica, at);
  }

  // Takes finished requests out of a replica and lets what waits for them follow.
  void collect(SimReplica& replica, Picoseconds at) {
    std::vector<ReplicaState::Finished>& outbox = replica.state().outbox();
    if (outbox.empty()) return;
    for (const ReplicaState::Finished& finished : outbox) {
      metrics_.add(finished.record);
      sink_.request(finished.record);
      if (finished.reason != nullptr && first_rejection_.empty()) first_rejection_ = finished.reason;
      Picoseconds arrives = 0;
      std::uint32_t turn = 0;
      if (arrivals_.follow_up(finished.record.number, at, arrives, turn)) {
        queue_.push(arrives, Phase::kArrive, EventKind::kFollowUp, 0, turn);
      } else {
        arrivals_.session_ended(at);
      }
    }
    outbox.clear();
  }

  bool sample(Picoseconds at) {
    for (std::uint32_t i = 0; i < setup_.num_replicas; ++i) {
      replicas_[i]->catch_up(at, true);
      sink_.sample(sample_of(replicas_[i]->state(), i, at, last_counted_[i]));
    }
    const bool more = arrivals_.next_root() != Arrivals::kNoMore || !queue_.is_empty();
    Picoseconds next = 0;
    const bool ends = __builtin_add_overflow(at, ns(setup_.timeline_interval) * kPsPerNs, &next);  // with the clock
    if (more && !ends) queue_.push(next, Phase::kSample, EventKind::kSample, 0, 0);
    return more;
  }

  RunSummary finish() {
    RunSummary summary;
    Picoseconds last = 0;
    std::vector<RequestRecord> unfinished;
    for (const auto& replica : replicas_) {
      last = std::max(last, replica->last_output());
      replica->state().drain(unfinished);
    }
    finish_requests(unfinished, setup_.stop, "GPU", metrics_, sink_, summary);
    summary.requests = arrivals_.taken();
    set_duration(first_arrival_, last, setup_.warmup, summary);
    summary.skipped = trace_.skipped();
    summary.trace_remark = trace_.remark();
    summary.first_rejection = first_rejection_;
    summary.events = events_;
    add_totals(summary, last - first_arrival_);
    return summary;
  }

  void add_totals(RunSummary& summary, Picoseconds duration) {
    StepTotals all;
    Int128 unfinished = 0;  // steps cut short by the stop are in the totals with all of their time
    for (const auto& replica : replicas_) {
      unfinished += replica->busy_after(first_arrival_ + duration);
      all.merge(replica->totals());
      add_counters(replica->state(), summary);
    }
    summary.steps = all.steps;
    const auto ratio = [](Int128 part, Int128 whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0; };
    const Int128 steps = static_cast<Int128>(all.steps);
    const Int128 replica_time = static_cast<Int128>(std::max<Picoseconds>(duration, 0)) * setup_.num_replicas;
    const std::int64_t num_blocks = replicas_.front()->state().num_blocks();
    summary.batch_mean_requests = ratio(all.rows, steps);
    summary.batch_mean_tokens = ratio(all.tokens, steps);
    summary.busy_frac = ratio(all.busy - unfinished, replica_time);
    summary.overload_frac = ratio(std::min(all.overload, all.busy - unfinished), replica_time);
    summary.kv_used_mean_frac = ratio(all.used_blocks, all.busy * num_blocks);
    summary.kv_used_peak_frac = ratio(all.peak_used_blocks, num_blocks);
    summary.internal_fragmentation_frac = ratio(all.wasted_tokens, all.used_blocks * setup_.memory.block_tokens);
    summary.external_fragmentation_frac = ratio(all.external_fragmentation, all.busy) * 1e-6;
    const Int128 priced = std::accumulate(all.part.begin(), all.part.end(), Int128{0});  // of every stage
    for (std::size_t i = 0; i < kCostParts; ++i) summary.part_frac[i] = ratio(all.part[i], priced);
    for (std::size_t i = 0; i < kFootings; ++i) summary.footing_frac[i] = ratio(all.footing[i], priced);
    const double busy_s = static_cast<double>(all.busy) * 1e-12;
    CostModel& cost = replicas_.front()->cost();
    if (busy_s > 0) {
      summary.mfu_frac = static_cast<double>(all.flops) / (busy_s * cost.peak_flops());
      summary.mbu_frac = static_cast<double>(all.bytes) / (busy_s * cost.peak_bytes_per_s());
    }
  }

  const SimSetup& setup_;
  TraceSource& trace_;
  RunSink& sink_;
  EventQueue queue_;
  Arrivals arrivals_;
  MetricsCollector metrics_;
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<SimReplica>> replicas_;
  std::vector<ReplicaState::Counters> last_counted_;
  const TraceRequest* arriving_ = nullptr;
  std::string first_rejection_;
  std::uint64_t arrivals_counted_ = 0, events_ = 0;
  Picoseconds first_arrival_ = 0, now_ = 0;
};

}  // namespace

RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink) { return Simulation(setup, trace, sink).run(); }

}  // namespace kvlab
