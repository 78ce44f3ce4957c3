// Samples and totals of a run.
#include <fmt/format.h>

#include <algorithm>

#include "base/checked_time.h"
#include "base/error.h"
#include "serving/fleet.h"

namespace kvlab {

namespace {

// Without a prefix cache, hits are absent, not 0.
void groups_have_no_cache(GroupSummary& groups) {
  for (auto* const rows : {&groups.classes, &groups.clients})
    for (GroupRow& row : *rows) row.prompt_tokens = 0;
}

// In trace order. Throws InputError without a stop rule.
void finish_requests(std::vector<RequestRecord>& unfinished, const StopRule& stop, MetricsCollector& metrics, RunSink& sink,
                     ServingSummary& summary) {
  if (!unfinished.empty() && stop.after_time.count() == 0)
    throw InputError(fmt::format(
        "{} requests wait forever: the scheduler plans nothing while the replica is idle (first of them: request {}, {} prompt tokens)",
        unfinished.size(), unfinished.front().number, unfinished.front().prompt_tokens));
  std::sort(unfinished.begin(), unfinished.end(), [](const RequestRecord& a, const RequestRecord& b) { return a.number < b.number; });
  for (const RequestRecord& record : unfinished) {
    metrics.add(record, kStart + stop.after_time);
    metrics.add_turn(record, /*has_more=*/true);
    sink.request(record);
  }
  summary.latencies = metrics.finish();
}

void set_duration(Picoseconds first_arrival, Picoseconds last, Span warmup, ServingSummary& summary) {
  const auto until_last = [&](Picoseconds from) { return to_span(std::max(Picoseconds{}, last - from)); };
  summary.duration = until_last(first_arrival);
  summary.counted_duration = until_last(std::max(first_arrival, to_ps(warmup)));
}

// `counted`: the last sample's counters, which are updated.
TimelineSample sample_of(const ReplicaState& state, std::uint32_t replica, Picoseconds at, ReplicaState::Counters& counted) {
  TimelineSample s;
  s.at = to_time(at);
  s.replica = replica;
  s.running = static_cast<std::int64_t>(state.running().size());
  s.swapped = state.memory().num_swapped() - state.transits().num_offers();
  s.waiting = state.queues().num_queued() - s.swapped;
  s.used_blocks = state.used_blocks();
  s.cached_blocks = state.pool().cached_blocks();
  s.free_blocks = state.free_blocks() - s.cached_blocks;
  s.prompt_tokens = state.counters().prompt_tokens - counted.prompt_tokens;
  s.output_tokens = state.counters().output_tokens - counted.output_tokens;
  counted = state.counters();
  return s;
}

void add_counters(const ReplicaState& state, ServingSummary& summary) {
  const ReplicaState::Counters& counters = state.counters();
  summary.preemptions += counters.preemptions;
  summary.swaps += counters.swaps;
  summary.recompute_fallbacks += counters.recompute_fallbacks;
  summary.over_budget += counters.over_budget;
  summary.recomputed_tokens += counters.recomputed_tokens;
  summary.lookup_tokens += counters.lookup_tokens;
  summary.hit_tokens += counters.hit_tokens;
  summary.output_tokens += counters.output_tokens;
  summary.block_operations += state.pool().operations();
  summary.evictions += state.pool().evictions();
  summary.peak_held_requests = std::max(summary.peak_held_requests, state.table().peak());
}

}  // namespace

bool Fleet::sample(Picoseconds at) {
  --num_clock_events_;
  for (std::uint32_t i = 0; i < replicas_.num_ranks(); ++i) {
    if (replicas_.unit(i).first_rank() == i) replicas_.unit(i).catch_up(at, true);
    sink_.sample(sample_of(state(i), i, at, last_counted_[i]));
  }
  const bool more = has_more();
  sampling_.note(at);
  const Picoseconds interval = sampling_.interval();
  if (more && !add_overflows(at, interval)) queue_clock_event(at + interval, Phase::kSample, EventKind::kSample);
  return more;
}

StepTotals Fleet::totals() const {
  StepTotals all;
  for (const auto& replica : replicas_.units()) all.merge(replica->done().totals);
  return all;
}

StepTotals Fleet::totals(std::uint32_t pool) const {
  StepTotals all;
  for (const auto& replica : replicas_.units())
    if (replicas_.place(replicas_.replica_of(replica->first_rank())).pool == pool) all.merge(replica->done().totals);
  return all;
}

ServingSummary Fleet::finish() {
  ServingSummary summary;
  Picoseconds last;
  std::vector<RequestRecord> unfinished;
  for (const auto& replica : replicas_.units()) {
    last = std::max(last, replica->done().last_output);
    for (const auto& rank : replica->ranks()) rank->state.drain(unfinished);
  }
  encoders_.drain(unfinished);
  for (const auto& list : held_.lists())
    for (const HeldRequests::Held& held : list)
      if (held.question.stage == Stage::kPrefill) unfinished.push_back(held.question.record);
  for (const RequestRecord& record : unfinished)
    if (record.facts != nullptr) count_in_groups(record, kStart + setup_.stop.after_time, -1);
  if (!held_.is_empty() && setup_.stop.after_time.count() == 0)
    throw InputError(
        fmt::format("{} requests wait forever: the dispatcher holds them and no replica makes a step; choose 'dispatcher: "
                    "least_outstanding', or give the pools more 'replicas' or 'memory'",
                    held_.size()));
  finish_requests(unfinished, setup_.stop, metrics_, sink_, summary);
  summary.groups = groups_.finish();
  summary.requests = arrivals_.taken();
  set_duration(first_arrival_, last, setup_.warmup, summary);
  summary.skipped = skipped();
  summary.trace_remark = trace_.remark();
  summary.timeline_remark = sampling_.remark(last);
  summary.first_rejection = first_rejection_;
  summary.events = events_;
  add_totals(summary, last - first_arrival_);
  if (summary.lookup_tokens == 0) groups_have_no_cache(summary.groups);
  if (!setup_.pools.empty()) add_pools(summary);
  return summary;
}

void Fleet::add_totals(ServingSummary& summary, Picoseconds duration) const {
  const StepTotals all = totals();
  Int128 unfinished = 0;  // totals contain steps cut by the stop with their whole time
  for (const auto& replica : replicas_.units()) {
    unfinished += replica->busy_after(first_arrival_ + duration).count();
    for (const auto& rank : replica->ranks()) add_counters(rank->state, summary);
  }
  summary.steps = all.steps;
  const Int128 steps = static_cast<Int128>(all.steps);
  const Int128 rank_time = static_cast<Int128>(std::max(duration, Picoseconds{}).count()) * replicas_.num_ranks();
  Int128 block_time = 0;
  for (std::uint32_t i = 0; i < setup_.num_pools(); ++i) {
    const StepTotals own = totals(i);
    const std::int64_t num_blocks = setup_.pools.empty() ? state(0).num_blocks() : setup_.pools[i].memory.num_blocks;
    block_time += own.busy * num_blocks;
    summary.kv_used_peak_frac = std::max(summary.kv_used_peak_frac, ratio(own.peak_used_blocks, num_blocks));
  }
  summary.batch_mean_requests = ratio(all.rows, steps);
  summary.batch_mean_tokens = ratio(all.tokens, steps);
  summary.busy_frac = ratio(all.busy - unfinished, rank_time);
  summary.overload_frac = ratio(std::min(all.overload, all.busy - unfinished), rank_time);
  summary.kv_used_mean_frac = ratio(all.used_blocks, block_time);
  summary.internal_fragmentation_frac = ratio(all.wasted_tokens, all.used_blocks * setup_.pool(0).memory.block_tokens);
  summary.external_fragmentation_frac = ratio(all.external_fragmentation, all.busy) * 1e-6;
}

void Fleet::add_pools(ServingSummary& summary) const {
  for (std::uint32_t i = 0; i < setup_.num_pools(); ++i) {
    const StepTotals own = totals(i);
    const std::int64_t num_blocks = setup_.pools[i].memory.num_blocks;
    PoolTotals pool;
    pool.busy = own.busy;
    pool.steps = own.steps;
    pool.images = own.images;
    pool.kv_used_mean_frac = ratio(own.used_blocks, own.busy * num_blocks);
    pool.kv_used_peak_frac = ratio(own.peak_used_blocks, num_blocks);
    for (std::uint32_t rank = 0; rank < replicas_.num_ranks(); ++rank)
      if (replicas_.place(replicas_.replica_of(rank)).pool == i) pool.output_tokens += state(rank).counters().output_tokens;
    summary.pools.push_back(pool);
  }
  summary.encode_pools = encoders_.totals();
  for (std::uint32_t replica = 0; replica < replicas_.num_replicas() + encoders_.size(); ++replica) {
    for (const bool is_egress : {true, false}) {
      const Transfers::Use& use = is_egress ? transfers_.egress(replica) : transfers_.ingress(replica);
      if (use.transfers > 0) summary.links.push_back({replica, is_egress, use.transfers, use.bytes, use.busy});
    }
  }
  add_stores(summary);
}

}  // namespace kvlab
