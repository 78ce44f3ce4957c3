#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/results/request_row.h"
#include "app/why/why_metric.h"

namespace kvlab {

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

}  // namespace kvlab
