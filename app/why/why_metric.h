#pragma once

#include <string>
#include <vector>

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

}  // namespace kvlab
