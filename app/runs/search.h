#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/params.h"
#include "traces/trace.h"

namespace kvlab {

// Goodput search: the highest arrival rate in [low, high] at which `attainment` of the requests meet the SLO, and the P99 of all gaps
// between tokens is within a limit.
struct SearchPlan {
  double low_per_s = 0, high_per_s = 0;
  double attainment = 0.9;
  double tolerance_frac = 0.02;  // the search ends when the bracket is this narrow, relative to its upper end
  double itl_p99_ms = 0;         // 0: no such limit
  bool has_slo = true;           // false: itl_p99_ms decides alone
};

// Reads `search`; none: the experiment has none. InputError with file:line:column.
std::optional<SearchPlan> read_search(Params& p, bool has_slo);

struct Probe {
  double rate_per_s = 0;
  double attainment_frac = 0;
  double goodput_per_s = 0;
  bool attains = false;
  double itl_p99_ms = 0;
};

struct SearchResult {
  std::vector<Probe> probes;  // in the order they were made
  double best_per_s = 0;      // the highest rate that attained; 0: none did
  std::string note;           // for the reader: range too low or high, attainment not monotonic
};

// Bisection. Both ends are tried first; monotonicity is not assumed to hold, but checked over the probes made.
// probe: attainment, goodput and gaps at a rate.
SearchResult search_rate(const SearchPlan& plan, const std::function<Probe(double rate_per_s)>& probe);

// `run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains`
std::string search_csv(const std::string& run_id, const SearchResult& result);

// A trace with its arrivals stretched or squeezed, so that its mean rate becomes another. Follow-ups keep their delays.
class RescaledTrace final : public TraceSource {
 public:
  RescaledTrace(std::unique_ptr<TraceSource> source, double factor) : source_(std::move(source)), factor_(factor) {}
  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }

 private:
  std::unique_ptr<TraceSource> source_;
  double factor_;
};

// Requests per second of a trace over the span of its arrivals, among the first `limit` requests (0: all). InputError with
// fewer than two arrivals or no time between them.
double mean_rate(TraceSource& source, std::uint64_t limit);

}  // namespace kvlab
