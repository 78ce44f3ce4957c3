#include "traces/arrival_unit.h"

#include <fmt/format.h>

namespace kvlab {

namespace {

constexpr std::uint64_t kFewRequests = 100;  // may be one burst
constexpr double kFastest_per_s = 1000;      // the busiest public trace has 73 requests per second
constexpr double kSlowest_per_s = 1e-3;

}  // namespace

// Milliseconds are whole numbers, and seconds read as milliseconds make the trace too short.
bool ArrivalUnit::is_too_fast(double span_s, double rate_per_s, bool is_whole) const {
  if (rate_per_s > kFastest_per_s && (is_whole || count_ >= kFewRequests)) return true;
  if (!in_ms() || !is_whole) return false;
  if (has_fraction_) return span_s < 10 || (span_s < 60 && rate_per_s >= 10);
  return span_s < 1 && count_ > 2;
}

bool ArrivalUnit::is_too_slow(double rate_per_s) const { return rate_per_s < kSlowest_per_s && count_ >= (in_ms() ? 3U : 10U); }

std::string ArrivalUnit::remark(std::string_view column, bool is_whole) const {
  if (unit_ns_ == 0 || count_ < 2 || last_ == first_) return "";
  const double span_s = to_s(last_ - first_), rate_per_s = static_cast<double>(count_ - 1) / span_s;
  const bool is_fast = is_too_fast(span_s, rate_per_s, is_whole);
  if (!is_fast && !is_too_slow(rate_per_s)) return "";
  std::string mend;
  if (is_fast && in_ms()) mend = "; if they are seconds, set 'arrival: {trace: {scale: 0.001}}'";
  if (!is_fast)
    mend = fmt::format("; if they are {}, set 'arrival: {{trace: {{scale: 1000}}}}'", in_ms() ? "microseconds" : "milliseconds");
  return fmt::format("are the times in the right unit? '{}' is read as {}, and so {} requests arrive within {:.4g} s, {:.4g} per s{}",
                     column, in_ms() ? "milliseconds" : "seconds", count_, span_s, rate_per_s, mend);
}

}  // namespace kvlab
