#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// Seconds on a common clock.
struct ServedRequest {
  double arrival_s = 0;  // only for ordering: engine logs have it on another clock
  double queued_s = 0, first_token_s = 0, last_token_s = 0;
  std::int64_t output_tokens = 0;

  // From queued, as in engine logs.
  [[nodiscard]] double ttft_ms() const { return (first_token_s - queued_s) * 1e3; }
  [[nodiscard]] double e2e_ms() const { return (last_token_s - queued_s) * 1e3; }
  [[nodiscard]] double tpot_ms() const { return (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1) * 1e3; }
};

// Over all completed requests, from a file without rows.
struct LogStatistic {
  std::string metric;                                    // ttft, tpot, itl or e2e
  std::string statistic;                                 // mean, std, min, max, p50, ...
  double value_ms = 0;                                   // NaN: only bounds are known
  std::optional<std::pair<double, double>> bounds_ms{};  // the histogram bucket with the value
  std::string place{};                                   // for messages: "FILE:3: 'p99_ttft_ms'"
};

struct RealLog {
  std::vector<ServedRequest> requests;
  bool is_of_client = false;               // queued when sent, not when the engine takes it
  bool has_clock = true;                   // false: times count from each request's start
  std::string note{};                      // lines on left out requests
  std::vector<LogStatistic> statistics{};  // of files without rows; `requests` is empty then
  std::int64_t num_completed = 0;          // of such files; 0: unknown
  std::string model{};                     // as the file names it; "": unknown
};

// Measurements of a real engine or of a load generator, in any format of LogFormatRegistry, told by the content; other files are read as an
// engine's own log (engine_log.h). InputError with file:line for a row that lacks a value, or whose times go backwards, and for times
// beyond the longest run.
RealLog read_real_log(const std::string& file);

// Names of LogStatistic::statistic.
bool is_statistic(const std::string& name);
// NaN if empty. Percentiles interpolate linearly; `std` divides by n.
double statistic_of(std::vector<double> values, const std::string& statistic);
// Latencies of requests with the metric: ttft, tpot or e2e.
std::vector<double> latencies_ms(const std::vector<ServedRequest>& requests, const std::string& metric);

struct MetricRow {
  std::string metric, statistic;
  double value_ms = 0;
  std::size_t num_requests = 0;  // with this metric
};

inline constexpr std::size_t kFirstRequests = 120;
inline constexpr const char* kFirstTtft = "ttft_first120";

// ttft, tpot, e2e and ttft_first120 (first 120 by arrival), each mean, p50, p90, p95, p99, interpolated linearly. TPOT excludes requests of
// one token.
std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests);

// Tokens per second and bin: each first token at its time, others evenly up to the last.
std::vector<double> token_rate(const std::vector<ServedRequest>& requests, double bin_s);

}  // namespace kvlab
