#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/why/why_metric.h"

namespace kvlab {

// docs/report.md.
enum class TimePart { kQueued, kPrefill, kDecode, kPreempted, kTransfer, kPolicy };
inline constexpr std::array<const char*, 6> kTimePartNames = {"queued", "prefill", "decode", "preempted", "transfer", "policy"};
using TimeParts = std::array<double, kTimePartNames.size()>;  // ns

// A row of requests.csv; instants in ns, negative if never reached.
struct RequestTimes {
  std::uint64_t number = 0;
  double arrival = -1, scheduled = -1, first_token = -1, last_token = -1;
  double prefill_policy = 0, decode_policy = 0;
  std::int64_t output_tokens = 0, preemptions = 0;
  bool is_completed = false;
};

struct CutInterval {
  TimePart part = TimePart::kPreempted;  // or kTransfer
  double begin = 0, end = 0;             // ns
};

struct RunTimes {
  std::vector<RequestTimes> requests;  // after the warm-up
  std::map<std::uint64_t, std::vector<CutInterval>> cuts;
  bool knows_preemptions = true;  // false: a request was preempted, and no trace.json has the instants
};

// From requests.csv, transfers.csv and trace.json, without requests before warmup_ns. Throws InputError without requests.csv.
RunTimes read_run_times(const std::filesystem::path& run, double warmup_ns);

// TPOT and gaps: per output token; negative: none.
double latency_ms(const RequestTimes& request, WhyFamily family);
// They add up to the metric's time: TTFT arrival to first token, end-to-end arrival to last token, TPOT and gaps first to last token.
TimeParts parts_of(const RequestTimes& request, const std::vector<CutInterval>& cuts, WhyFamily family);

}  // namespace kvlab
