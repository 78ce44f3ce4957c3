#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/results/run_folder.h"
#include "base/csv.h"

namespace kvlab {

enum class WhyFamily { kTtft, kTpot, kItl, kE2e, kGoodput, kSearch };

struct WhyMetric {
  std::string column;  // "ttft_p99_ms"
  WhyFamily family = WhyFamily::kTtft;
  double tail_frac = 0.01;  // share of slowest requests that decide the value; 1: all

  [[nodiscard]] bool is_latency() const { return family < WhyFamily::kGoodput; }
  // More is better: goodput, attainment, rates and users found by a search.
  [[nodiscard]] bool rises() const;
  [[nodiscard]] std::string title() const;
  // "13.6 s", "45.3 ms", "12.3/s", "57.1 %", "4 replicas".
  [[nodiscard]] std::string text_of(double value) const;
  // "ttft", "tpot" (also for gaps), "e2e", or "".
  [[nodiscard]] std::string limit_name() const;
};

// name: a column, or short: "ttft" for ttft_p99_ms, "tbt" for itl_p99_ms. Throws InputError with the known ones.
WhyMetric parse_why_metric(const std::string& name);
std::vector<std::string> why_metric_columns();

// "1.24 s", "45.3 ms".
std::string time_text(double ms);

// As in the report (docs/report.md).
enum class TimePart { kQueued, kPrefill, kDecode, kPreempted, kTransfer, kPolicy };
inline constexpr std::array<const char*, 6> kTimePartNames = {"queued", "prefill", "decode", "preempted", "transfer", "policy"};
using TimeParts = std::array<double, kTimePartNames.size()>;  // ns

// -1 if never reached.
inline double ns_of(const std::optional<std::int64_t>& instant) { return instant ? static_cast<double>(*instant) : -1; }

struct CutInterval {
  TimePart part = TimePart::kPreempted;  // or kTransfer
  double begin = 0, end = 0;             // ns
};

// Requests with the intervals cut out of their phases.
struct RunTimes {
  std::vector<RequestRow> requests;                      // after the warm-up
  std::map<std::string, std::vector<CutInterval>> cuts;  // by request
  bool knows_preemptions = true;                         // false: a request was preempted, and no trace.json has the instants
};

// From requests.csv, transfers.csv and trace.json of runs/ID, without requests before warmup_ns. Throws InputError if there is no
// requests.csv.
RunTimes read_run_times(const std::filesystem::path& run, double warmup_ns);

// Latency in ms (TPOT and gaps: per output token); negative: none.
double latency_ms(const RequestRow& request, WhyFamily family);
// Parts that add up to the metric's time: TTFT arrival to first token, end-to-end arrival to last token, TPOT and gaps first to last token.
TimeParts parts_of(const RequestRow& request, const std::vector<CutInterval>& cuts, WhyFamily family);

class SummaryRow {
 public:
  SummaryRow() = default;
  // Throws InputError if summary.csv is missing or empty.
  explicit SummaryRow(const std::filesystem::path& run);
  [[nodiscard]] std::string text(const std::string& column) const;  // "" if absent
  // NaN if not a number.
  [[nodiscard]] double number(const std::string& column) const;

 private:
  CsvTable table_;
};

// From the first arrival of the slowest requests to the end of the last.
struct WhyWindow {
  double begin_ns = 0, end_ns = 0;
};

// "KV memory was full from 220 s on". Full: less than a tenth of the blocks is free or only cached, as in `waits_for`.
std::vector<std::string> full_in(const std::filesystem::path& run, const SummaryRow& summary, const WhyWindow& window);
// Waiting requests, preemptions, overload.
std::vector<std::string> load_in(const std::filesystem::path& run, const SummaryRow& summary);

struct Change {
  std::string label;  // "2 replicas", "fp8 KV"
  std::vector<std::string> set;
  bool finds_load = false;  // searches for another load and reports its tries
};

struct CurrentLoad {
  double rate_per_s = 0;  // of the trace; 0: unknown
  bool attains = false;
};

// Another replica (per pool), twice the tp, fp8 KV, more KV memory, other limits per step, prefix caching, other loads (higher if the SLO
// is attained).
std::vector<Change> changes_of(const RunSettings& settings, const SummaryRow& summary, const WhyMetric& metric, const CurrentLoad& load);

struct Tried {
  std::string label;
  std::vector<std::string> set;
  double value = 0;       // NaN: none
  double attainment = 0;  // NaN: nothing judged
  bool attains = false;
  std::int64_t gpus = 0;         // 0: unknown
  bool is_highest_load = false;  // that attains
  std::string error;
};

class ScratchRuns {
 public:
  ScratchRuns();
  ~ScratchRuns();
  ScratchRuns(const ScratchRuns&) = delete;
  ScratchRuns& operator=(const ScratchRuns&) = delete;

  // Executes a resolved.yaml with other values. Throws InputError if it cannot run; Interrupted.
  std::filesystem::path run(const std::filesystem::path& resolved, const std::vector<std::string>& set);

 private:
  std::filesystem::path folder_;
  int count_ = 0;
};

// In order until `within_s` have passed or the user stops; `skipped` names the rest. wanted: share that must meet the SLO.
std::vector<Tried> try_changes(const std::filesystem::path& run, const std::vector<Change>& changes, const WhyMetric& metric, double wanted,
                               double within_s, std::vector<std::string>& skipped);
// Best first, failed ones last.
void sort_by_effect(std::vector<Tried>& tried, const WhyMetric& metric);

struct LimitUse {
  std::string limit;
  double value_ms = 0, limit_ms = 0;
};

struct Explanation {
  std::string run;
  std::string title;  // "scheduler=sarathi"; "": a single run
  WhyMetric metric;
  double value = 0;                   // NaN: none
  std::optional<double> limit_ms;     // per request
  double attainment = 0, wanted = 0;  // attainment NaN: nothing judged
  std::string binding, waits_for;     // columns of summary.csv
  bool is_search = false;
  bool is_end_of_range = false;  // a search found the best value of its range
  // The requests that decide the value.
  std::size_t num_slowest = 0, num_requests = 0;
  TimeParts parts{};      // summed over them, ns
  TimeParts all_parts{};  // over all with this latency, ns
  bool knows_preemptions = true;
  WhyWindow arrived;  // first to last of them, ns
  std::vector<std::string> full, load;
  std::vector<LimitUse> limits;
  double rate_per_s = 0;
  std::vector<std::string> remarks;
  std::vector<Tried> tried;
  std::vector<std::string> skipped;

  [[nodiscard]] bool attains() const { return attainment >= wanted; }
};

// For the SLO limit missed most, else P99 TTFT; for a search, its result.
WhyMetric usual_metric(const std::filesystem::path& run);

// From the search or named SLO, else 0.9.
double wanted_share_of(const std::filesystem::path& run);

// again: repeats the run if its files lack requests or instants of preemptions. Throws InputError for a run without requests.csv or the
// metric, or neither simulated nor served.
Explanation explain(const std::filesystem::path& run, const std::string& title, const WhyMetric& metric, bool again);
void add_tries(const std::filesystem::path& run, double within_s, Explanation& e);

// Events, when and where, and helpful changes. The last is absent if nothing was tried.
std::vector<std::string> lines_of(const Explanation& e);
nlohmann::ordered_json json_of(const Explanation& e);

struct WhyCommand {
  std::string folder;
  std::string metric, run, out;  // "": the usual metric; the best run; standard output
  bool every = false;
  bool tries = true;
  bool json = false;
  double seconds = 60;  // for tries, per run
};

// Returns 0, or 130 after Ctrl-C. Throws InputError for missing results, an unknown run or metric, or a run without requests.
int explain_results(const WhyCommand& command, std::ostream& out);

// After a sweep: one run, without tries. Prints nothing without an SLO or search, or if requests are many.
void print_short_explanation(const std::filesystem::path& folder, std::ostream& out);

}  // namespace kvlab
