#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

// One statistic over all completed requests, of a file without their rows.
struct LogStatistic {
  std::string metric;                                    // ttft, tpot, itl or e2e
  std::string statistic;                                 // mean, std, min, max, or p50 and the like
  double value_ms = 0;                                   // NaN where only the bounds are known
  std::optional<std::pair<double, double>> bounds_ms{};  // of a histogram: the bucket that holds it
};

struct RequestLog {
  std::vector<ServedRequest> requests;
  bool is_of_client = false;               // a request is queued when the client sends it, not when the engine takes it
  bool has_clock = true;                   // false: each request's times count from its own start
  std::string note{};                      // lines on requests that are left out
  std::vector<LogStatistic> statistics{};  // of a file without rows; then `requests` is empty
  std::int64_t num_completed = 0;          // of such a file; 0: it does not say
  std::string model{};                     // that was served, as the file names it; "": it does not say
};

// Measurements of a real engine or of a load generator, in any format of LogFormatRegistry, told by the content; other files are read as an
// engine's own log (engine_log.h). InputError with file:line for a row that lacks a value, or whose times go backwards, and for times
// beyond the longest run.
RequestLog read_real_log(const std::string& file);

// True for the names that LogStatistic::statistic has.
bool is_statistic(const std::string& name);
// NaN of no values. Percentiles interpolate linearly; `std` divides by n.
double statistic_of(std::vector<double> values, const std::string& statistic);
// Values of each request that has the metric: ttft, tpot or e2e.
std::vector<double> latencies_ms(const std::vector<ServedRequest>& requests, const std::string& metric);

struct MetricRow {
  std::string metric, statistic;
  double value_ms = 0;
  std::size_t num_requests = 0;  // that the value is of
};

inline constexpr std::size_t kFirstRequests = 120;
inline constexpr const char* kFirstTtft = "ttft_first120";

// ttft, tpot, e2e and ttft_first120 (the first 120 by arrival), each mean, p50, p90, p95 and p99, percentiles interpolated
// linearly. TPOT leaves out requests of one token.
std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests);

// Output tokens per bin, in tokens per second: each request's first token at its time, the others evenly up to its last.
std::vector<double> token_rate(const std::vector<ServedRequest>& requests, double bin_s);

}  // namespace kvlab
