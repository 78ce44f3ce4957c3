#include "app/runs/search.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

// Two probes that contradict "a higher rate never attains more", or nothing.
std::string monotonicity_note(const std::vector<Probe>& probes) {
  for (const Probe& low : probes) {
    for (const Probe& high : probes) {
      if (low.rate_per_s < high.rate_per_s && !low.attains && high.attains) {
        const bool by_gaps = low.attainment_frac >= high.attainment_frac;
        return by_gaps ? fmt::format(
                             "the P99 of gaps is not monotonic: {:.4g}/s misses its limit ({:.4g} ms) but {:.4g}/s meets it ({:.4g} ms)",
                             low.rate_per_s, low.itl_p99_ms, high.rate_per_s, high.itl_p99_ms)
                       : fmt::format("attainment is not monotonic: {:.4g}/s misses the target ({:.4f}) but {:.4g}/s meets it ({:.4f})",
                                     low.rate_per_s, low.attainment_frac, high.rate_per_s, high.attainment_frac);
      }
    }
  }
  return "";
}

}  // namespace

std::optional<SearchPlan> read_search(Params& p, bool has_slo) {
  Params s = p.optional_child("search", "search");
  if (!p.has("search")) return std::nullopt;
  if (!has_slo && !s.has("itl_p99_ms"))
    p.fail_at("search", "'search' needs 'slo: {ttft_ms, tpot_ms, tbt_ms, e2e_ms}' or its own 'itl_p99_ms' to know what is good enough");
  if (!s.has("rate")) s.fail("search needs 'rate': [low, high] in requests per second");
  const std::vector<double> rate = s.numbers("rate", 1e-6, 1e9, "lowest and highest arrival rate to try, requests per second");
  if (rate.size() != 2 || rate[0] >= rate[1]) s.fail_at("rate", "'rate': expected [low, high] with low < high");
  SearchPlan plan{rate[0], rate[1]};
  plan.has_slo = has_slo;
  plan.attainment = s.optional<double>("attainment", 0.9, 0.01, 1, "share of requests that must meet the SLO");
  plan.tolerance_frac = s.optional<double>("tolerance_frac", 0.02, 1e-4, 0.5, "width of the final bracket, relative to its upper end");
  if (s.has("itl_p99_ms"))
    plan.itl_p99_ms = s.required<double>("itl_p99_ms", 1e-6, 9e9, "limit of the P99 of all gaps between tokens; absent: none");
  s.reject_unread();
  return plan;
}

SearchResult search_rate(const SearchPlan& plan, const std::function<Probe(double)>& probe) {
  SearchResult result;
  const auto attains = [&](double rate) {
    Probe p = probe(rate);
    p.rate_per_s = rate;
    p.attains = (!plan.has_slo || p.attainment_frac >= plan.attainment) && (plan.itl_p99_ms == 0 || p.itl_p99_ms <= plan.itl_p99_ms);
    if (p.attains) result.best_per_s = std::max(result.best_per_s, rate);
    result.probes.push_back(p);
    return p.attains;
  };
  double low = plan.low_per_s, high = plan.high_per_s;
  const bool low_attains = attains(low), high_attains = attains(high);
  if (high_attains) {
    result.note = fmt::format("even {:.4g}/s attains: raise the upper end of search.rate", high);
  } else if (!low_attains) {
    result.note = fmt::format("not even {:.4g}/s attains: lower the lower end of search.rate, or relax the SLO", low);
  } else {
    while (high - low > plan.tolerance_frac * high) {
      const double middle = low + (high - low) / 2;
      (attains(middle) ? low : high) = middle;
    }
  }
  const std::string contradiction = monotonicity_note(result.probes);
  if (!contradiction.empty()) result.note = contradiction;
  return result;
}

std::string search_csv(const std::string& run_id, const SearchResult& result) {
  std::string text = "run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains\n";
  for (std::size_t i = 0; i < result.probes.size(); ++i) {
    const Probe& p = result.probes[i];
    text +=
        fmt::format("{},{},{:.6f},{:.6f},{:.6f},{}\n", run_id, i + 1, p.rate_per_s, p.attainment_frac, p.goodput_per_s, p.attains ? 1 : 0);
  }
  return text;
}

bool RescaledTrace::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  request.arrival = kStart + from_seconds(to_s(request.arrival) * factor_);
  return true;
}

double mean_rate(TraceSource& source, std::uint64_t limit) {
  TraceRequest request;
  std::uint64_t requests = 0;
  Time first = kNever, last = kStart;
  while ((limit == 0 || requests < limit) && source.next(request)) {
    ++requests;
    if (request.is_follow_up) continue;
    first = std::min(first, request.arrival);
    last = std::max(last, request.arrival);
  }
  if (requests < 2 || last <= first) throw InputError("'search' needs a trace whose arrivals span some time, to set their rate");
  return static_cast<double>(requests - 1) / to_s(last - first);
}

}  // namespace kvlab
