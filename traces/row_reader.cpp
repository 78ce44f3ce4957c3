#include "traces/row_reader.h"

#include <fmt/format.h>

#include "base/error.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

constexpr std::uint64_t kFewRequests = 100;  // may be one burst
constexpr double kFastest_per_s = 1000;      // the busiest public trace has 73 requests per second
constexpr double kSlowest_per_s = 1e-3;

// Appends to a list separated by semicolons, unless "".
void add_part(std::string& all, const std::string& one) { all += (all.empty() || one.empty() ? "" : "; ") + one; }

bool is_object(std::string_view line) { return line.substr(line.find_first_not_of(" \t")).starts_with('{'); }

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

bool header_names(std::string_view line, std::string_view column) {
  return !is_object(line) && line.find(column) != std::string_view::npos;
}

bool object_has(std::string_view line, std::string_view key) {
  return is_object(line) && line.find(fmt::format("\"{}\"", key)) != std::string_view::npos;
}

bool RowReader::next(TraceRequest& request) {
  request = TraceRequest{};
  if (!read_row(request)) {
    if (num_requests_ == 0)
      throw InputError(lines().name() + ": no request in the file; a trace has at least one" +
                       (counts_.empty() ? "" : " (" + skipped() + ")"));
    is_at_end_ = true;
    return false;
  }
  check_order(request);
  if (!request.is_follow_up) unit_.add(request.arrival);
  ++num_requests_;
  return true;
}

void RowReader::check_order(const TraceRequest& request) {
  if (options_.any_order) return;
  if (request.is_follow_up) {
    if (num_requests_ > 0 && request.session == session_before_) return;
    lines().fail(
        "a later turn of a session must stand directly below the turn before it; set 'sort: true' to gather them (loads the whole trace)");
  }
  session_before_ = request.session;
  if (request.arrival < latest_) {
    lines().fail(arrival_column_, fmt::format("{:.9g} s before the row above; sort the file, or set 'sort: true' (loads the whole trace)",
                                              to_s(latest_ - request.arrival)));
  }
  latest_ = request.arrival;
}

bool RowReader::is_repeated(std::int64_t id, std::string_view column, std::string_view rows) {
  if (seen_.insert(id).second) return false;
  count(fmt::format("{} with the {} of an earlier one dropped", rows, column));
  return true;
}

Time RowReader::since_first(std::int64_t instant_ns) {
  if (!first_ns_) first_ns_ = instant_ns;
  const std::int64_t since = instant_ns - *first_ns_;
  if (since > kMaxTraceNs) lines().fail(arrival_column_, "more than ten years after the first row");
  return Time(Span(since));
}

Time RowReader::time_of(std::int64_t ns) {
  if (!has_instants_) has_instants_ = ns > kMaxTraceNs;
  if (*has_instants_) return since_first(ns);
  if (ns > kMaxTraceNs) lines().fail(arrival_column_, "a time beyond ten years, or since 1970, where that of the first row is not");
  return Time(Span(ns));
}

Time RowReader::arrival_of_row_without() const {
  if (options_.uses_arrivals)
    lines().fail(arrival_column_, "missing in this row; for a trace of lengths only give arrivals: 'arrival: {poisson: {rate_per_s: 2}}'");
  return std::max(latest_, kStart);
}

std::string RowReader::skipped() const {
  std::string all;
  for (const auto& [what, times] : counts_) add_part(all, fmt::format("{} {}", times, what));
  add_part(all, ignored_.text());
  return all;
}

std::string RowReader::remark() const {
  std::string all = options_.uses_arrivals && options_.doubts_unit ? unit_.remark(arrival_column_, is_at_end_) : "";
  if (options_.uses_arrivals && has_instants_.value_or(false))
    add_part(all,
             fmt::format("times are instants since 1970 and count from {}", options_.any_order ? "the earliest" : "that of the first row"));
  add_part(all, origin());
  return all;
}

}  // namespace kvlab
