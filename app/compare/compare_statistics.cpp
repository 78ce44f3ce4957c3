#include "app/compare/compare_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/csv.h"
#include "base/quantile.h"
#include "base/text.h"

namespace kvlab {

namespace {

// NaN if absent.
double simulated_ms(const SimulatedRun& run, const LogStatistic& s) {
  if (s.metric != "itl") return statistic_of(latencies_ms(run.requests, s.metric), s.statistic);
  const auto found = run.gap_ms.find(s.statistic);
  return found == run.gap_ms.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

// "in", "below" or "above" the bucket; "" without one.
std::string place_in_bucket(const LogStatistic& s, double value) {
  if (!s.bounds_ms) return "";
  return value < s.bounds_ms->first ? "below" : value > s.bounds_ms->second ? "above" : "in";
}

// simulated / real - 1. With a bucket: NaN inside it, else to the nearest bound.
double difference(const LogStatistic& s, double simulated) {
  const std::string place = place_in_bucket(s, simulated);
  if (place == "in") return std::numeric_limits<double>::quiet_NaN();
  const double real = place.empty() ? s.value_ms : place == "below" ? s.bounds_ms->first : s.bounds_ms->second;
  return real > 0 ? simulated / real - 1 : std::numeric_limits<double>::quiet_NaN();
}

std::string bound_text(const LogStatistic& s, bool is_upper) {
  return s.bounds_ms ? ms_text(is_upper ? s.bounds_ms->second : s.bounds_ms->first) : "";
}

std::string shown(double value) { return std::isfinite(value) ? fmt::format("{:.1f}", value) : ""; }

std::string head_of(const RealLog& log, const SimulatedRuns& runs) {
  const std::string real = log.num_completed > 0 ? fmt::format("real {} requests", log.num_completed) : "real: statistics";
  std::string text =
      log.note + fmt::format("{}; simulated: median and range of {} runs; milliseconds, from arrival\n", real, runs.ensemble.size());
  const auto num_simulated = static_cast<std::int64_t>(runs.ensemble[0].requests.size());
  if (log.num_completed > 0 && log.num_completed != num_simulated)
    text += fmt::format("statistics over {} requests are compared with {} of the simulation: the two did not serve the same\n",
                        log.num_completed, num_simulated);
  return text;
}

}  // namespace

Comparison compare_statistics(const RealLog& log, const SimulatedRuns& runs) {
  const bool has_bounds =
      std::any_of(log.statistics.begin(), log.statistics.end(), [](const LogStatistic& s) { return s.bounds_ms.has_value(); });
  std::string csv = "metric,statistic,real,simulated,simulated_lo,simulated_hi,diff_frac";
  csv += has_bounds ? ",real_lo,real_hi,real_requests,simulated_requests\n" : ",real_requests,simulated_requests\n";
  std::vector<std::vector<std::string>> table;
  std::vector<std::string> left_out;
  for (const LogStatistic& s : log.statistics) {
    std::vector<double> values;
    for (const SimulatedRun& run : runs.ensemble) values.push_back(simulated_ms(run, s));
    if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
      left_out.push_back(s.metric + " " + s.statistic);
      continue;
    }
    const double middle = median(values), diff = difference(s, middle);
    const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    std::vector<std::string> row = {s.metric, s.statistic, ms_text(s.value_ms), ms_text(middle), ms_text(*lo), ms_text(*hi), ms_text(diff)};
    if (has_bounds) row.insert(row.end(), {bound_text(s, false), bound_text(s, true)});
    row.insert(row.end(), {log.num_completed > 0 ? std::to_string(log.num_completed) : "",
                           s.metric == "itl" ? "" : std::to_string(latencies_ms(runs.ensemble[0].requests, s.metric).size())});
    csv += csv_line(row);
    table.push_back({s.metric, s.statistic, shown(s.value_ms), shown(middle), shown(*lo), shown(*hi), percent_text(diff)});
    if (has_bounds) {
      const auto upper = s.bounds_ms && !std::isfinite(s.bounds_ms->second) ? "no limit" : bound_text(s, true);
      table.back().insert(table.back().end(),
                          {s.bounds_ms ? shown(s.bounds_ms->first) : "",
                           upper == "no limit" || upper.empty() ? upper : shown(s.bounds_ms->second), place_in_bucket(s, middle)});
    }
  }
  std::vector<std::string> header = {"metric", "statistic", "real", "simulated", "lo", "hi", "diff"};
  if (has_bounds) header.insert(header.end(), {"real_lo", "real_hi", "simulated is"});
  std::string text = head_of(log, runs) + text_table(header, table);
  if (!left_out.empty()) text += fmt::format("not compared, since results do not have them: {}\n", join(left_out, ", "));
  return {csv, text};
}

}  // namespace kvlab
