// What a run of the engine records: samples, steps, totals.
#include <algorithm>

#include "engine/serve/engine_replica.h"
#include "serving/host_summary.h"

namespace kvlab {

namespace {

Time report_time(Picoseconds at) { return Time(Span(at / kPsPerNs)); }

}  // namespace

void EngineReplica::sample_until(Picoseconds at) {
  const Picoseconds every = ns(setup_.timeline_interval) * kPsPerNs;
  for (; every > 0 && next_sample_ <= at; next_sample_ += every) sink_.sample(sample_of(state_, 0, next_sample_, last_sampled_));
}

void EngineReplica::count(const Handed& handed) {
  const auto time = static_cast<double>(handed.step.end - handed.step.start);
  ++totals_.steps;
  totals_.busy += time;
  totals_.rows += static_cast<double>(handed.step.entries.size());
  for (const StepEntry& entry : handed.step.entries) totals_.tokens += entry.tokens;
  if (handed.waiting > 0) totals_.overload += time;
  totals_.peak_used_blocks = std::max(totals_.peak_used_blocks, handed.used_blocks);
  totals_.used_blocks += static_cast<double>(handed.used_blocks) * time;
  totals_.wasted_tokens += static_cast<double>(handed.wasted_tokens) * time;
  totals_.external += static_cast<double>(handed.external_ppm) * time;
}

void EngineReplica::tell_sink(const Handed& handed) {
  record_.number = handed.step.number;
  record_.planned = report_time(handed.step.planned);
  record_.start = report_time(handed.step.start);
  record_.end = report_time(handed.step.end);
  record_.entries.clear();
  for (const StepEntry& entry : handed.step.entries)
    record_.entries.push_back({state_.table()[entry.request].number, entry.tokens, entry.computed_before});
  record_.free_blocks = state_.free_blocks();
  record_.waiting = handed.waiting;
  sink_.step(record_);
}

ServingSummary EngineReplica::finish() {
  ServingSummary summary;
  std::vector<RequestRecord> unfinished;
  state_.drain(unfinished);
  finish_requests(unfinished, setup_.stop, "engine", metrics_, sink_, summary);
  summary.requests = arrivals_.taken();
  set_duration(first_arrival_, last_output_, setup_.warmup, summary);
  summary.skipped = trace_.skipped();
  summary.trace_remark = trace_.remark();
  summary.remark = executor_.remark();
  summary.first_rejection = first_rejection_;
  add_totals(summary, last_output_ - first_arrival_);
  if (setup_.emitted != nullptr) {
    executor_.run(job_);  // what finished last
    *setup_.emitted = executor_.tokens();
  }
  if (setup_.inspect && setup_.nominal_time) setup_.inspect(state_, executor_);
  return summary;
}

void EngineReplica::add_totals(ServingSummary& summary, Picoseconds duration) const {
  add_counters(state_, summary);
  const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  const auto steps = static_cast<double>(totals_.steps), blocks = static_cast<double>(state_.num_blocks());
  const auto wall = static_cast<double>(std::max<Picoseconds>(duration, 0));
  summary.steps = totals_.steps;
  summary.batch_mean_requests = ratio(totals_.rows, steps);
  summary.batch_mean_tokens = ratio(totals_.tokens, steps);
  summary.busy_frac = ratio(totals_.busy, wall);
  summary.overload_frac = ratio(totals_.overload, wall);
  summary.kv_used_mean_frac = ratio(totals_.used_blocks, totals_.busy * blocks);
  summary.kv_used_peak_frac = ratio(static_cast<double>(totals_.peak_used_blocks), blocks);
  summary.internal_fragmentation_frac = ratio(totals_.wasted_tokens, totals_.used_blocks * setup_.memory.block_tokens);
  summary.external_fragmentation_frac = ratio(totals_.external, totals_.busy) * 1e-6;
}

}  // namespace kvlab
