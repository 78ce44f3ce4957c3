#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

// One request as a log and requests.csv both have it; seconds on any clock that both of a log's ends share.
struct ServedRequest {
  double arrival_s = 0;  // orders requests, nothing else: engine logs keep it on another clock
  double queued_s = 0, first_token_s = 0, last_token_s = 0;
  std::int64_t output_tokens = 0;

  // Measured from queued, as engine logs have it.
  [[nodiscard]] double ttft_ms() const { return (first_token_s - queued_s) * 1e3; }
  [[nodiscard]] double e2e_ms() const { return (last_token_s - queued_s) * 1e3; }
  [[nodiscard]] double tpot_ms() const { return (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1) * 1e3; }
};

struct RequestLog {
  std::vector<ServedRequest> requests;
  bool is_of_client = false;  // a request is queued when the client sends it, not when the engine takes it
  bool has_clock = true;      // false: each request's times count from its own start
  std::string note{};         // lines on requests that are left out
};

// A real engine's log, one JSON object per line with input_toks, output_toks, arrival_time, queued_ts, first_token_ts and
// last_token_ts (seconds), or that of a load generator (client_log.h). InputError with file:line for a row that lacks one, or whose
// times go backwards, and for times beyond the longest run.
RequestLog read_real_log(const std::string& file);

struct MetricRow {
  std::string metric, statistic;
  double value_ms = 0;
};

inline constexpr std::size_t kFirstRequests = 120;
inline constexpr const char* kFirstTtft = "ttft_first120";

// ttft, tpot, e2e and ttft_first120 (the first 120 by arrival), each mean, p50, p90, p95 and p99, percentiles interpolated
// linearly. TPOT leaves out requests of one token.
std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests);

// Output tokens per bin, in tokens per second: each request's first token at its time, the others evenly up to its last.
std::vector<double> token_rate(const std::vector<ServedRequest>& requests, double bin_s);

}  // namespace kvlab
