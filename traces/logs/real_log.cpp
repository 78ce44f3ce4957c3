#include "traces/logs/real_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "base/quantile.h"
#include "base/read_file.h"
#include "base/run_limit.h"
#include "traces/logs/client_log.h"

namespace kvlab {

namespace {

ServedRequest parse_row(const std::string& line, const std::string& where) {
  const nlohmann::json json = parse_json(line, where);
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

// Times in milliseconds or smaller units look like seconds of a run longer than there can be.
void check_span(const std::vector<ServedRequest>& requests, const std::string& file) {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  for (const ServedRequest& r : requests) begin = std::min(begin, r.queued_s), end = std::max(end, r.last_token_s);
  if (end - begin <= kLongestRunSeconds) return;
  throw InputError(fmt::format("{}: its times span {:.3g} s, and no run lasts longer than 9.2e6 s (106 days): are the times in seconds?",
                               file, end - begin));
}

void add_statistics(std::vector<MetricRow>& rows, const std::string& metric, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += v;
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const bool any = !values.empty();
  rows.push_back({metric, "mean", any ? sum / static_cast<double>(values.size()) : nothing});
  for (const int p : {50, 90, 95, 99})
    rows.push_back({metric, fmt::format("p{}", p), any ? quantile_of_sorted(values, p / 100.0) : nothing});
}

}  // namespace

namespace {

std::vector<ServedRequest> read_engine_log(const std::string& text, const std::string& file) {
  std::vector<ServedRequest> requests;
  std::size_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++line_number;
    const std::string line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos) requests.push_back(parse_row(line, fmt::format("{}:{}", file, line_number)));
    at = end + 1;
  }
  return requests;
}

}  // namespace

RequestLog read_real_log(const std::string& file) {
  const std::string text = read_file(file);
  std::optional<RequestLog> of_client = read_client_log(text, file);
  RequestLog log = of_client ? std::move(*of_client) : RequestLog{read_engine_log(text, file)};
  if (log.requests.empty()) throw InputError(file + ": has no requests" + (log.note.empty() ? "" : " that completed"));
  check_span(log.requests, file);
  return log;
}

std::vector<MetricRow> latency_statistics(std::vector<ServedRequest> requests) {
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  std::vector<double> ttft, tpot, e2e, ttft_first;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ttft.push_back(requests[i].ttft_ms());
    e2e.push_back(requests[i].e2e_ms());
    if (requests[i].output_tokens > 1) tpot.push_back(requests[i].tpot_ms());
    if (i < kFirstRequests) ttft_first.push_back(ttft.back());
  }
  std::vector<MetricRow> rows;
  add_statistics(rows, "ttft", std::move(ttft));
  add_statistics(rows, "tpot", std::move(tpot));
  add_statistics(rows, "e2e", std::move(e2e));
  add_statistics(rows, kFirstTtft, std::move(ttft_first));
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
