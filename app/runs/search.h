#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/latency_limit.h"
#include "base/params.h"
#include "base/time.h"

namespace kvlab {

// The quantity that a search varies. More of the first two makes it harder to meet the limits, more of the last two easier.
enum class SearchKey : std::uint8_t { kRate, kConcurrency, kReplicas, kTp };

// Search for the highest load, or the least hardware, with which `attainment` of the requests meet the SLO and every limit of a latency is
// met.
struct SearchPlan {
  double low = 0, high = 0;  // of the quantity; all but rates are whole numbers
  double attainment = 0.9;
  double tolerance_frac = 0.02;  // a search over rates ends when the bracket is this narrow, relative to its upper end; others are exact
  SearchKey key = SearchKey::kRate;
  std::vector<LatencyLimit> limits = {};
  bool has_slo = true;       // false: `limits` decide alone
  double at_rate_per_s = 0;  // of a search over replicas or tp; 0: as the trace has it
  Span ramp{0};              // of a search over users: the first requests of all of them come evenly over this time

  [[nodiscard]] bool is_easier_above() const { return key == SearchKey::kReplicas || key == SearchKey::kTp; }
  [[nodiscard]] double easiest() const { return is_easier_above() ? high : low; }
  [[nodiscard]] double hardest() const { return is_easier_above() ? low : high; }
  // True where the quantity at `a` is harder than at `b`.
  [[nodiscard]] bool is_harder(double a, double b) const { return is_easier_above() ? a < b : a > b; }
  // "2.5/s", "16 users", "3 replicas", "tp 4".
  [[nodiscard]] std::string text_of(double value) const;
  // Its key below `search`.
  [[nodiscard]] const char* key_text() const;
};

// Reads `search`; none: the experiment has none. InputError with file:line:column.
std::optional<SearchPlan> read_search(Params& p, bool has_slo);

// One try of a search.
struct Probe {
  double value = 0;  // of the quantity
  MetricsCollector::Latencies latencies{};
  double counted_s = 0;   // time over which rates are taken
  std::string waits_for;  // WaitWatch::waits_for()
  std::string refusal;    // why it cannot run at all, as a model that does not fit; "": it ran
  // Set by the search:
  bool attains = false;
  std::string binding_limit;  // binding_limit() of it where it does not attain

  [[nodiscard]] double goodput_per_s() const { return counted_s > 0 ? static_cast<double>(latencies.attained) / counted_s : 0; }
};

struct SearchResult {
  std::vector<Probe> probes;   // in the order they were made
  std::optional<double> best;  // the hardest value that attained; none did
  std::string note;            // what a reader must know: range too low or high, attainment not monotonic

  // The easiest of the probes that are harder than the best and failed; where none attained, the easiest. Null: there is none.
  [[nodiscard]] const Probe* next_failure(const SearchPlan& plan) const;
};

// The limit that fails first: of the SLO the one that most of the judged requests miss, where there were too few that attained, then each
// limit of a latency that is not met, joined by "+". Rejected requests count as the limit "rejected". "": everything is met.
std::string binding_limit(const SearchPlan& plan, const MetricsCollector::Latencies& latencies);
// The limit of the SLO that most judged requests miss; "": none misses any.
std::string most_missed_limit(const MetricsCollector::Latencies& latencies);

// Bisection between the ends of the plan, which are tried first; of tp every power of two in the range is tried. Monotonicity is not
// assumed to hold, but checked over the probes made.
// probe: the run at a value.
SearchResult search(const SearchPlan& plan, const std::function<Probe(double value)>& probe);

// `run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains,...`, see docs/results.md.
std::string search_csv(const std::string& run_id, const SearchPlan& plan, const SearchResult& result);

}  // namespace kvlab
