#include "app/runs/sweep/search.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "app/runs/plan/slo.h"
#include "base/csv.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct SearchKeyText {
  const char *key, *meaning, *things;
};
constexpr std::array<SearchKeyText, 4> kSearchKeys = {{{"rate", "arrival rate to try, requests per second", "requests per second"},
                                                       {"concurrency", "number of users in a closed loop", "users"},
                                                       {"replicas", "number of replicas", "replicas"},
                                                       {"tp", "tensor-parallel degree; powers of two in between are tried", "GPUs"}}};

const SearchKeyText& key_texts(SearchKey key) { return kSearchKeys[static_cast<std::size_t>(key)]; }

// Two probes that contradict "harder never attains more", or "".
std::string monotonicity_note(const SearchPlan& plan, const std::vector<Probe>& probes) {
  for (const Probe& easy : probes) {
    for (const Probe& hard : probes) {
      if (!plan.is_harder(hard.value, easy.value) || easy.attains || !hard.attains) continue;
      const std::string misses = plan.text_of(easy.value), meets = plan.text_of(hard.value);
      if (!easy.refusal.empty()) return fmt::format("{} cannot run, but {} meets the target", misses, meets);
      if (plan.has_slo && easy.latencies.slo_attainment_frac < plan.attainment)
        return fmt::format("attainment is not monotonic: {} misses the target ({:.4f}) but {} meets it ({:.4f})", misses,
                           easy.latencies.slo_attainment_frac, meets, hard.latencies.slo_attainment_frac);
      for (const LatencyLimit& limit : plan.limits)
        if (!limit.is_met(easy.latencies))
          return fmt::format("{} is not monotonic: {} misses its limit ({:.4g} ms) but {} meets it ({:.4g} ms)", limit.column, misses,
                             limit.value_ms(easy.latencies), meets, limit.value_ms(hard.latencies));
    }
  }
  return "";
}

// The only range.
SearchKey read_key(Params& s) {
  std::vector<std::string> given;
  SearchKey key = SearchKey::kRate;
  for (std::size_t i = 0; i < kSearchKeys.size(); ++i) {
    if (!s.has(kSearchKeys[i].key)) continue;
    given.emplace_back(kSearchKeys[i].key);
    key = static_cast<SearchKey>(i);
  }
  if (given.empty())
    s.fail("search needs 'rate': [low, high] in requests per second, or such a range of 'concurrency', 'replicas' or 'tp'");
  if (given.size() > 1)
    s.fail_at(
        given.back(),
        fmt::format("search varies one quantity, and {} are given: keep one, and sweep over another by a list outside of 'search', as "
                    "'replicas: [1, 2]'",
                    join(given, " and ")));
  return key;
}

void read_range(Params& s, SearchPlan& plan) {
  const auto& [key, meaning, things] = key_texts(plan.key);
  const bool is_rate = plan.key == SearchKey::kRate;
  const double most = is_rate ? 1e9 : plan.key == SearchKey::kTp ? 1024 : 100'000;
  const std::vector<double> range = s.numbers(key, is_rate ? 1e-6 : 1, most, fmt::format("lowest and highest {}", meaning));
  if (range.size() != 2 || range[0] >= range[1]) s.fail_at(key, fmt::format("'{}': expected [low, high] with low < high", key));
  if (!is_rate && (range[0] != std::floor(range[0]) || range[1] != std::floor(range[1])))
    s.fail_at(key, fmt::format("'{}': expected whole numbers of {}", key, things));
  plan.low = range[0], plan.high = range[1];
  if (plan.key != SearchKey::kTp) return;
  for (const double end : range)
    if (std::exp2(std::round(std::log2(end))) != end) s.fail_at(key, "'tp': expected powers of two, as [1, 8]");
}

void refuse_key(const Params& s, const char* key, const std::string& why) {
  if (s.has(key)) s.fail_at(key, fmt::format("'{}' {}", key, why));
}

void read_of_key(Params& s, SearchPlan& plan) {
  const bool has_rate = plan.key == SearchKey::kReplicas || plan.key == SearchKey::kTp;
  if (plan.key == SearchKey::kRate)
    plan.tolerance_frac = s.optional<double>("tolerance_frac", 0.02, 1e-4, 0.5, "width of the final bracket, relative to its upper end");
  else
    refuse_key(s, "tolerance_frac", "is of searches over 'rate': whole numbers are found exactly, so leave it out");
  if (plan.key == SearchKey::kConcurrency)
    plan.ramp = s.seconds("ramp_s", 10, 0, 9e6, "the users' first requests come evenly over this time; 0: all at once");
  else
    refuse_key(s, "ramp_s", "is of searches over 'concurrency': it spreads the first requests of the users");
  if (has_rate)
    plan.at_rate_per_s = s.optional<double>("at_rate_per_s", 0, 0, 1e9, "arrival rate that must be served; 0: as the trace has it");
  else
    refuse_key(s, "at_rate_per_s", "is of searches over 'replicas' and 'tp'");
}

class Prober {
 public:
  Prober(const SearchPlan& plan, const std::function<Probe(double)>& probe) : plan_(plan), probe_(probe) {}

  bool attains(double value) {
    Probe p = probe_(value);
    p.value = value;
    p.binding_limit = p.refusal.empty() ? binding_limit(plan_, p.latencies) : "cannot run";
    p.attains = p.binding_limit.empty();
    if (p.attains && (!result_.best || plan_.is_harder(value, *result_.best))) result_.best = value;
    result_.probes.push_back(p);
    return p.attains;
  }
  SearchResult& result() { return result_; }

 private:
  const SearchPlan& plan_;
  const std::function<Probe(double)>& probe_;
  SearchResult result_;
};

// If an end of the range decides.
std::string note_beyond(const SearchPlan& plan, bool hardest_attains) {
  const std::string key = plan.key_text();
  if (!hardest_attains)
    return fmt::format("not even {} attains: {} end of search.{}, or relax the SLO", plan.text_of(plan.easiest()),
                       plan.is_easier_above() ? "raise the upper" : "lower the lower", key);
  if (plan.is_easier_above() && plan.low == 1) return "";  // nothing is below
  return fmt::format("even {} attains: {} end of search.{}", plan.text_of(plan.hardest()),
                     plan.is_easier_above() ? "lower the lower" : "raise the upper", key);
}

// `attaining` if there is none.
double middle_of(const SearchPlan& plan, double attaining, double failing) {
  if (plan.key == SearchKey::kRate)
    return failing - attaining > plan.tolerance_frac * failing ? attaining + (failing - attaining) / 2 : attaining;
  return std::abs(failing - attaining) > 1 ? std::floor((attaining + failing) / 2) : attaining;
}

void bisect(const SearchPlan& plan, Prober& prober) {
  double attaining = plan.easiest(), failing = plan.hardest();
  const bool easiest_attains = prober.attains(attaining), hardest_attains = prober.attains(failing);
  if (hardest_attains || !easiest_attains) {
    prober.result().note = note_beyond(plan, hardest_attains);
    return;
  }
  for (double middle = middle_of(plan, attaining, failing); middle != attaining; middle = middle_of(plan, attaining, failing))
    (prober.attains(middle) ? attaining : failing) = middle;
}

// There are few, and communication can make more GPUs slower.
void try_each(const SearchPlan& plan, Prober& prober) {
  bool hardest_attains = false;
  for (double value = plan.low; value <= plan.high; value *= 2) {
    const bool attains = prober.attains(value);
    hardest_attains = hardest_attains || (attains && value == plan.hardest());
  }
  if (hardest_attains || !prober.result().best) prober.result().note = note_beyond(plan, hardest_attains);
}

}  // namespace

const char* SearchPlan::key_text() const { return key_texts(key).key; }

std::string SearchPlan::text_of(double value) const {
  switch (key) {
    case SearchKey::kRate:
      return fmt::format("{:.4g}/s", value);
    case SearchKey::kConcurrency:
      return fmt::format("{:.0f} user{}", value, value == 1 ? "" : "s");
    case SearchKey::kReplicas:
      return fmt::format("{:.0f} replica{}", value, value == 1 ? "" : "s");
    case SearchKey::kTp:
      return fmt::format("tp {:.0f}", value);
  }
  return "";
}

std::optional<SearchPlan> read_search(Params& p, bool has_slo) {
  Params s = p.optional_child("search", "search");
  if (!p.has("search")) return std::nullopt;
  SearchPlan plan;
  plan.limits = read_latency_limits(s);
  if (!has_slo && plan.limits.empty())
    p.fail_at("search",
              "'search' needs 'slo: {ttft_ms, tpot_ms, tbt_ms, e2e_ms}' or a limit of its own, as 'ttft_p99_ms', 'tpot_p50_ms' or "
              "'itl_p99_ms', to know what is good enough");
  plan.key = read_key(s);
  read_range(s, plan);
  plan.has_slo = has_slo;
  plan.attainment = s.optional<double>("attainment", usual_attainment(p), 0.01, 1, "share of requests that must meet the SLO");
  read_of_key(s, plan);
  s.reject_unread();
  return plan;
}

std::string most_missed_limit(const MetricsCollector::Latencies& latencies) {
  std::uint64_t most = 0;
  std::string name;
  for (std::size_t i = 0; i < latencies.missed.size(); ++i) {
    if (latencies.missed[i] <= most) continue;
    most = latencies.missed[i];
    name = kSloTermNames[i];
  }
  return latencies.judged_rejected > most ? "rejected" : name;
}

std::string binding_limit(const SearchPlan& plan, const MetricsCollector::Latencies& latencies) {
  std::vector<std::string> failing;
  if (plan.has_slo && latencies.slo_attainment_frac < plan.attainment) {
    const std::string missed = most_missed_limit(latencies);
    failing.push_back(missed.empty() ? "attainment" : missed);  // nothing judged
  }
  for (const LatencyLimit& limit : plan.limits)
    if (!limit.is_met(latencies)) failing.push_back(limit.column);
  return join(failing, "+");
}

const Probe* SearchResult::next_failure(const SearchPlan& plan) const {
  const Probe* next = nullptr;
  for (const Probe& probe : probes) {
    if (probe.attains || (best && !plan.is_harder(probe.value, *best))) continue;
    if (next == nullptr || plan.is_harder(next->value, probe.value)) next = &probe;
  }
  return next;
}

SearchResult search(const SearchPlan& plan, const std::function<Probe(double)>& probe) {
  Prober prober(plan, probe);
  if (plan.key == SearchKey::kTp)
    try_each(plan, prober);
  else
    bisect(plan, prober);
  SearchResult& result = prober.result();
  const std::string contradiction = monotonicity_note(plan, result.probes);
  if (!contradiction.empty()) result.note = contradiction;
  return result;
}

std::string search_csv(const std::string& run_id, const SearchPlan& plan, const SearchResult& result) {
  std::string text =
      "run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains,varied,value,ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,tpot_p99_ms,"
      "itl_p99_ms,e2e_p50_ms,e2e_p99_ms,binding_limit,waits_for,refusal\n";
  const auto ms = [](const Distribution& d, double value) { return d.count > 0 ? fmt::format("{:.6f}", value * 1e-6) : ""; };
  for (std::size_t i = 0; i < result.probes.size(); ++i) {
    const Probe& p = result.probes[i];
    const MetricsCollector::Latencies& l = p.latencies;
    const auto if_judged = [&](double number) { return l.judged > 0 ? fmt::format("{:.6f}", number) : std::string(); };
    const std::string value = fmt::format("{:.6f}", p.value);
    text += csv_line({run_id, std::to_string(i + 1), plan.key == SearchKey::kRate ? value : "", if_judged(l.slo_attainment_frac),
                      if_judged(p.goodput_per_s()), p.attains ? "1" : "0", plan.key_text(), value, ms(l.ttft, l.ttft.p50),
                      ms(l.ttft, l.ttft.p99), ms(l.tpot, l.tpot.p50), ms(l.tpot, l.tpot.p99), ms(l.itl, l.itl.p99), ms(l.e2e, l.e2e.p50),
                      ms(l.e2e, l.e2e.p99), p.binding_limit, p.waits_for, p.refusal});
  }
  return text;
}

}  // namespace kvlab
