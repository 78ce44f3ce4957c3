#include "serving/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/quantile.h"

namespace kvlab {

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kRejected:
      return "rejected";
    case Outcome::kUnfinished:
      return "unfinished";
  }
  return "";
}

Distribution distribution_of(std::vector<std::int64_t>& values) {
  Distribution d;
  d.count = values.size();
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const std::int64_t v : values) sum += static_cast<double>(v);
  d.mean = sum / static_cast<double>(values.size());
  d.p50 = quantile_of_sorted(values, 0.50);
  d.p90 = quantile_of_sorted(values, 0.90);
  d.p95 = quantile_of_sorted(values, 0.95);
  d.p99 = quantile_of_sorted(values, 0.99);
  d.max = static_cast<double>(values.back());
  return d;
}

Distribution distribution_of(const LogHistogram& h, double scale) {
  return {h.count(),
          h.mean() * scale,
          h.quantile(0.5) * scale,
          h.quantile(0.9) * scale,
          h.quantile(0.95) * scale,
          h.quantile(0.99) * scale,
          static_cast<double>(h.max()) * scale};
}

void Values::count_all() {
  for (const std::int64_t value : exact_) counted_.add(value);
  exact_ = {};
}

Distribution Values::finish() { return counted_.count() > 0 ? distribution_of(counted_) : distribution_of(exact_); }

std::int64_t tpot_ns(const RequestRecord& r) { return r.output_tokens > 1 ? ns(r.last_token - r.first_token) / (r.output_tokens - 1) : 0; }

namespace {

// Misses of an unfinished request: first token or end too late, or tokens so far too slow, with the current wait.
SloMisses missed_so_far(const RequestRecord& r, const SloTarget& slo, Time cut_off) {
  const bool has_first = r.first_token != kNever;
  const Time first = has_first ? r.first_token : cut_off;
  const bool is_last_gap_late = r.gaps == GapState::kLastChance && has_first && cut_off - r.last_token > slo.tbt;
  return {first - r.arrival > slo.ttft, has_first && r.output_tokens > 0 && ns(cut_off - r.first_token) / r.output_tokens > ns(slo.tpot),
          r.gaps == GapState::kMissed || is_last_gap_late, cut_off - r.arrival > slo.e2e};
}

bool is_any(const SloMisses& missed) { return std::find(missed.begin(), missed.end(), true) != missed.end(); }

}  // namespace

SloTarget targets_of(const RequestRecord& r, const Slo& of_run) {
  SloTarget own = static_cast<const SloTarget&>(of_run);
  if (r.facts == nullptr) return own;
  if (const auto found = of_run.classes.find(r.facts->request_class); found != of_run.classes.end()) own = found->second;
  if (const auto found = of_run.clients.find(r.facts->client); found != of_run.clients.end()) own = found->second;
  const bool has_ttft = has_fact(r.facts, Fact::kTtftSlo), has_tpot = has_fact(r.facts, Fact::kTpotSlo);
  const bool has_tbt = has_fact(r.facts, Fact::kTbtSlo);
  if ((has_ttft || has_tpot || has_tbt) && !own.is_set) own = SloTarget::none();
  if (has_ttft) own.ttft = r.facts->ttft_slo;
  if (has_tpot) own.tpot = r.facts->tpot_slo;
  if (has_tbt) own.tbt = r.facts->tbt_slo;
  return own;
}

SloMisses missed_terms(const RequestRecord& r, const SloTarget& slo, Time cut_off) {
  if (r.outcome == Outcome::kUnfinished && cut_off != kNever) return missed_so_far(r, slo, cut_off);
  if (r.outcome != Outcome::kCompleted) return {};
  return {r.first_token - r.arrival > slo.ttft, tpot_ns(r) > ns(slo.tpot), r.gaps == GapState::kMissed, r.last_token - r.arrival > slo.e2e};
}

bool has_attained(const RequestRecord& r, const SloTarget& slo) {
  return slo.is_set && r.outcome == Outcome::kCompleted && !is_any(missed_terms(r, slo));
}

bool is_judged(const RequestRecord& r, const SloTarget& slo, Time cut_off) {
  return r.outcome != Outcome::kUnfinished || is_any(missed_terms(r, slo, cut_off));
}

void MetricsCollector::add(const RequestRecord& r, Time cut_off) {
  if (r.session < 0 && has_fact(r.facts, Fact::kProgram)) add_to(programs_[r.facts->program], r);
  if (r.arrival < count_from_) return;
  ++all_.counted;
  const SloTarget slo = targets_of(r, slo_);
  if (slo.is_set) judge(r, slo, cut_off);
  if (r.outcome == Outcome::kRejected) ++all_.rejected;
  if (r.outcome == Outcome::kUnfinished) ++all_.unfinished;
  if (r.outcome != Outcome::kCompleted) return;
  ++all_.completed;
  all_.prompt_tokens += r.prompt_tokens;
  all_.output_tokens += r.output_tokens;
  const std::int64_t ttft = ns(r.first_token - r.arrival);
  const std::int64_t e2e = ns(r.last_token - r.arrival);
  ttft_.add(ttft);
  e2e_.add(e2e);
  queueing_.add(ns(r.scheduled - r.arrival));
  normalized_.add(e2e / r.output_tokens);
  if (r.output_tokens > 1) tpot_.add(tpot_ns(r));
}

void MetricsCollector::judge(const RequestRecord& r, const SloTarget& slo, Time cut_off) {
  const SloMisses missed = missed_terms(r, slo, cut_off);
  const bool has_missed = is_any(missed);
  if (r.outcome == Outcome::kUnfinished && !has_missed) return;
  ++all_.judged;
  if (r.outcome == Outcome::kRejected) ++all_.judged_rejected;
  if (r.outcome == Outcome::kCompleted && !has_missed) ++all_.attained;
  for (std::size_t i = 0; i < missed.size(); ++i)
    if (missed[i]) ++all_.missed[i];
}

void MetricsCollector::add_qoe(const RequestRecord& r, double qoe) {
  if (qoe >= 0 && r.arrival >= count_from_) qoe_loss_.add(std::llround(1e6 * (1 - qoe)));
}

void MetricsCollector::add_to(Job& job, const RequestRecord& r) {
  job.arrival = std::min(job.arrival, r.arrival);
  job.is_complete = job.is_complete && r.outcome == Outcome::kCompleted;
  if (r.outcome == Outcome::kCompleted) job.end = std::max(job.end, r.last_token);
}

void MetricsCollector::count(const Job& job) {
  if (job.is_complete && !job.has_more && job.arrival >= count_from_) jct_.add(ns(job.end - job.arrival));
}

void MetricsCollector::add_turn(const RequestRecord& r, bool has_more) {
  if (r.session < 0) return;
  const auto at = jobs_.try_emplace(r.session).first;
  Job& job = at->second;
  add_to(job, r);
  job.has_more = has_more;
  job.is_chain = job.is_chain || has_more;
  if (has_more || !job.is_chain) return;
  count(job);
  jobs_.erase(at);
}

MetricsCollector::Latencies MetricsCollector::finish() {
  for (const auto& [session, job] : jobs_) count(job);
  for (const auto& [program, job] : programs_) count(job);
  jobs_.clear();
  programs_.clear();
  all_.ttft = ttft_.finish();
  all_.tpot = tpot_.finish();
  all_.e2e = e2e_.finish();
  all_.queueing = queueing_.finish();
  all_.normalized = normalized_.finish();
  all_.jct = jct_.finish();
  all_.qoe_loss = qoe_loss_.finish();
  all_.itl = distribution_of(itl_, 1e-3);  // from picoseconds
  all_.slo_attainment_frac = all_.judged > 0 ? static_cast<double>(all_.attained) / static_cast<double>(all_.judged) : 0;
  return all_;
}

void GroupMetrics::add_to(Group& group, const RequestRecord& r, bool judged, bool attained, double qoe) {
  constexpr double kOutputWeight = 2;
  GroupRow& row = group.row;
  ++row.requests;
  row.completed += r.outcome == Outcome::kCompleted ? 1 : 0;
  row.unfinished += r.outcome == Outcome::kUnfinished ? 1 : 0;
  row.judged += judged ? 1 : 0;
  row.attained += attained ? 1 : 0;
  row.service_tokens += (r.first_token != kNever ? r.prompt_tokens : 0) + kOutputWeight * r.output_tokens;
  if (qoe >= 0) {
    row.qoe_sum += qoe;
    ++row.followed;
  }
  if (r.scheduled != kNever) {
    row.prompt_tokens += r.prompt_tokens;
    row.hit_tokens += r.hit_tokens;
  }
  if (r.outcome != Outcome::kCompleted) return;
  if (r.output_tokens > 1) group.tpot.add(tpot_ns(r));
  group.ttft.add(ns(r.first_token - r.arrival));
  group.e2e.add(ns(r.last_token - r.arrival));
}

void GroupMetrics::add(const RequestRecord& r, bool judged, bool attained, double qoe) {
  if (has_fact(r.facts, Fact::kClass)) {
    Group& group = classes_[r.facts->request_class];
    group.row.name = r.facts->request_class.text();
    add_to(group, r, judged, attained, qoe);
  }
  if (has_fact(r.facts, Fact::kClient)) {
    Group& group = clients_[r.facts->client];
    group.row.name = std::to_string(r.facts->client);
    add_to(group, r, judged, attained, qoe);
  }
}

template <class Key>
std::vector<GroupRow> GroupMetrics::rows_of(std::map<Key, Group>& groups) {
  std::vector<GroupRow> rows;
  for (auto& [key, group] : groups) {
    group.row.ttft = group.ttft.finish();
    group.row.tpot = group.tpot.finish();
    group.row.e2e = group.e2e.finish();
    rows.push_back(group.row);
  }
  return rows;
}

GroupSummary GroupMetrics::finish() {
  GroupSummary summary{rows_of(classes_), rows_of(clients_), {}};
  std::vector<double> backlogged;
  for (const GroupRow& client : summary.clients)
    if (client.unfinished > 0) backlogged.push_back(client.service_tokens);
  if (backlogged.size() < 2) return summary;
  const auto [least, most] = std::minmax_element(backlogged.begin(), backlogged.end());
  summary.service_gap_tokens = *most - *least;
  return summary;
}

}  // namespace kvlab
