#include "serving/host_summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab {

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

}  // namespace kvlab
