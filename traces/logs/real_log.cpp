#include "traces/logs/real_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/config/params.h"
#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "base/quantile.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/time.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

// 'request_id' as text; "": none.
std::string id_of(const nlohmann::json& row) {
  const auto found = row.is_object() ? row.find("request_id") : row.end();
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

ServedRequest parse_row(const nlohmann::json& json, const std::string& where) {
  const JsonNode row(json, where);
  if (!json.is_object()) row.fail("not a JSON object");
  ServedRequest r;
  r.arrival_s = row.at("arrival_time").number();
  r.queued_s = row.at("queued_ts").number();
  r.first_token_s = row.at("first_token_ts").number();
  r.last_token_s = row.at("last_token_ts").number();
  const double tokens = row.at("output_toks").number();
  if (!(tokens >= 1 && tokens < 1e9) || tokens != std::floor(tokens))
    throw InputError(fmt::format("{}: 'output_toks' = {} is no count from 1", where, tokens));
  r.output_tokens = static_cast<std::int64_t>(tokens);
  if (r.first_token_s < r.queued_s) throw InputError(where + ": 'first_token_ts' comes before 'queued_ts'");
  if (r.last_token_s < r.first_token_s) throw InputError(where + ": 'last_token_ts' comes before 'first_token_ts'");
  return r;
}

// JSON lines with input_toks, output_toks, arrival_time, queued_ts, first_token_ts and last_token_ts in seconds. Also for unrecognised
// files, to report missing keys.
RealLog read_engine_log(const LogText& text) {
  RealLog log;
  LeftOut repeated;
  text.each_line([&](const std::string& line, const std::string& where) {
    const nlohmann::json row = parse_json(line, where);
    if (!repeated.is_repeated(id_of(row))) log.requests.push_back(parse_row(row, where));
  });
  log.note = repeated.note(log.requests.size());
  return log;
}

// Milliseconds read as seconds exceed the longest run.
void check_span(const std::vector<ServedRequest>& requests, const std::string& file) {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  for (const ServedRequest& r : requests) begin = std::min(begin, r.queued_s), end = std::max(end, r.last_token_s);
  if (end - begin <= kLongestRunS) return;
  throw InputError(fmt::format("{}: its times span {:.3g} s, and no run lasts longer than 9.2e6 s (106 days): are the times in seconds?",
                               file, end - begin));
}

// By more than a file's rounding.
bool exceeds(double a, double b) { return a > b + 0.005 + 1e-3 * std::abs(b); }

// Rank of a statistic: min 0, max 100, percentile p; else -1.
int rank_of(const std::string& statistic) {
  if (statistic == "min") return 0;
  if (statistic == "max") return 100;
  return statistic.starts_with('p') ? std::stoi(statistic.substr(1)) : -1;
}

[[noreturn]] void fail_pair(const LogStatistic& a, const LogStatistic& b) {
  throw InputError(fmt::format("{} = {:g} ms is above '{}' = {:g} ms of the same {}: values of one distribution cannot be so", a.place,
                               a.value_ms, b.statistic, b.value_ms, a.metric));
}

// Percentiles ascend, and the mean is between minimum and maximum.
void check_statistics(const std::vector<LogStatistic>& all) {
  const auto is_value = [](const LogStatistic& s) { return !s.bounds_ms && std::isfinite(s.value_ms); };
  for (const LogStatistic& a : all) {
    for (const LogStatistic& b : all) {
      if (!is_value(a) || !is_value(b) || a.metric != b.metric || !exceeds(a.value_ms, b.value_ms)) continue;
      const int rank_a = rank_of(a.statistic), rank_b = rank_of(b.statistic);
      const bool are_ordered = rank_a >= 0 && rank_b >= 0 && rank_a < rank_b;
      const bool is_mean = (a.statistic == "min" && b.statistic == "mean") || (a.statistic == "mean" && b.statistic == "max");
      if (are_ordered || is_mean || (a.statistic == "std" && b.statistic == "max")) fail_pair(a, b);
    }
  }
}

void add_statistics(std::vector<MetricRow>& rows, const std::string& metric, const std::vector<double>& values) {
  for (const char* const statistic : {"mean", "p50", "p90", "p95", "p99"})
    rows.push_back({metric, statistic, statistic_of(values, statistic), values.size()});
}

}  // namespace

RealLog read_real_log(const std::string& file) {
  const LogText text(read_file(file), file);
  RealLog log = [&] {
    Params none = Params::empty("log");
    for (const std::string& name : LogFormatRegistry::names())
      if (const auto format = LogFormatRegistry::make(name, none, "format of a log"); format->recognises(text)) return format->read(text);
    return read_engine_log(text);
  }();
  if (log.requests.empty() && log.statistics.empty())
    throw InputError(file + ": has no requests" + (log.note.empty() ? "" : " that completed"));
  check_statistics(log.statistics);
  check_span(log.requests, file);
  return log;
}

bool is_statistic(const std::string& name) {
  static const std::set<std::string> plain = {"mean", "std", "min", "max"};
  long long percent = 0;
  return plain.contains(name) || (name.starts_with('p') && parse_integer(name.substr(1), percent) && percent >= 0 && percent <= 100);
}

double statistic_of(std::vector<double> values, const std::string& statistic) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  if (statistic == "mean") return mean;
  if (statistic == "std") return std::sqrt(squares / static_cast<double>(values.size()));
  if (statistic == "min") return values.front();
  if (statistic == "max") return values.back();
  return quantile_of_sorted(values, std::stod(statistic.substr(1)) / 100);
}

std::vector<double> latencies_ms(const std::vector<ServedRequest>& requests, const std::string& metric) {
  std::vector<double> values;
  for (const ServedRequest& r : requests) {
    if (metric == "ttft") values.push_back(r.ttft_ms());
    if (metric == "e2e") values.push_back(r.e2e_ms());
    if (metric == "tpot" && r.output_tokens > 1) values.push_back(r.tpot_ms());
  }
  return values;
}

std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests) {
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  std::vector<MetricRow> rows;
  for (const char* const metric : {"ttft", "tpot", "e2e"}) add_statistics(rows, metric, latencies_ms(requests, metric));
  requests.resize(std::min(requests.size(), kFirstRequests));
  add_statistics(rows, kFirstTtft, latencies_ms(requests, "ttft"));
  return rows;
}

std::vector<double> token_rate(const std::vector<ServedRequest>& requests, double bin_s) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const ServedRequest& r : requests) {
    begin = std::min(begin, r.queued_s);
    end = std::max(end, r.last_token_s);
  }
  std::vector<double> tokens(requests.empty() ? 0 : static_cast<std::size_t>((end - begin) / bin_s) + 1);
  for (const ServedRequest& r : requests) {
    const auto last = r.output_tokens - 1;
    for (std::int64_t k = 0; k <= last; ++k) {
      const double share = last == 0 ? 0 : static_cast<double>(k) / static_cast<double>(last);
      const double at = r.first_token_s + share * (r.last_token_s - r.first_token_s) - begin;
      tokens[std::min(tokens.size() - 1, static_cast<std::size_t>(at / bin_s))] += 1 / bin_s;
    }
  }
  return tokens;
}

}  // namespace kvlab
