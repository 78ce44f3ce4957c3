#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// On a common clock.
struct ServedRequest {
  double arrival_s = 0;  // only for ordering: another clock in engine logs
  double queued_s = 0, first_token_s = 0, last_token_s = 0;
  std::int64_t output_tokens = 0;

  [[nodiscard]] double ttft_ms() const { return (first_token_s - queued_s) * 1e3; }
  [[nodiscard]] double e2e_ms() const { return (last_token_s - queued_s) * 1e3; }
  [[nodiscard]] double tpot_ms() const { return (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1) * 1e3; }
};

// From a file without rows.
struct LogStatistic {
  std::string metric;     // ttft, tpot, itl or e2e
  std::string statistic;  // mean, std, min, max, p50, ...
  double value_ms = 0;    // NaN: only bounds
  std::optional<std::pair<double, double>> bounds_ms{};
  std::string place{};  // "FILE:3: 'p99_ttft_ms'"
};

struct RealLog {
  std::vector<ServedRequest> requests;
  bool is_of_client = false;  // queued when sent, not when taken
  bool has_clock = true;      // false: from each request's start
  std::string note{};
  std::vector<LogStatistic> statistics{};  // without rows; `requests` is empty then
  std::int64_t num_completed = 0;          // without rows; 0: unknown
  std::string model{};                     // as named there; "": unknown
};

// Any format of LogFormatRegistry, by content; else an engine's log. Throws InputError with file:line for missing values,
// times that go backwards or exceed the longest run.
RealLog read_real_log(const std::string& file);

bool is_statistic(const std::string& name);
// NaN if empty. Percentiles are linear; `std` divides by n.
double statistic_of(std::vector<double> values, const std::string& statistic);
std::vector<double> latencies_ms(const std::vector<ServedRequest>& requests, const std::string& metric);

struct MetricRow {
  std::string metric, statistic;
  double value_ms = 0;
  std::size_t num_requests = 0;
};

inline constexpr std::size_t kFirstRequests = 120;
inline constexpr const char* kFirstTtft = "ttft_first120";

// ttft, tpot, e2e and ttft_first120 (first 120 by arrival), each mean, p50, p90, p95, p99, linear. TPOT excludes one-token requests.
std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests);

// Per second: each first token at its time, others evenly up to the last.
std::vector<double> token_rate(const std::vector<ServedRequest>& requests, double bin_s);

}  // namespace kvlab
