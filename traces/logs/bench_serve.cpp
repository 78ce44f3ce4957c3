#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

using Json = nlohmann::json;

bool is_bench_result(const Json& root) {
  if (!root.is_object()) return false;
  const Json* const rate = member_of(root, {"request_throughput"});
  return root.contains("ttfts") || root.contains("mean_ttft_ms") || (rate != nullptr && rate->is_number());
}

double sum_of(const Json& values, const std::string& where) {
  if (!values.is_array()) throw InputError(fmt::format("{} is no list: {}", where, short_json(values)));
  double sum = 0;
  for (const Json& value : values) sum += number_in(value, where);
  return sum;
}

// A list per quantity: ttfts, itls (s), output_lens, optional start_times and errors. `kvlab export` writes e2els (s), not itls.
RealLog read_rows(const Json& root, const std::string& file) {
  const BenchLists lists(root, file, "ttfts");
  const auto number = [&](const char* key, std::size_t i) { return number_in(lists.at(key, i), lists.where(key, i)); };
  RealLog log;
  log.is_of_client = true;
  log.has_clock = lists.has("start_times");
  LeftOut left_out;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::int64_t tokens = count_in(lists.at("output_lens", i), lists.where("output_lens", i));
    if (lists.has_error(i) || tokens == 0) {
      left_out.add("failed");
      continue;
    }
    ServedRequest r;
    r.queued_s = log.has_clock ? number("start_times", i) : 0;
    r.arrival_s = log.has_clock ? r.queued_s : static_cast<double>(i);
    r.first_token_s = r.queued_s + number("ttfts", i);
    r.last_token_s =
        lists.has("e2els") ? r.queued_s + number("e2els", i) : r.first_token_s + sum_of(lists.at("itls", i), lists.where("itls", i));
    if (r.last_token_s < r.first_token_s) throw InputError(lists.where("e2els", i) + " is below 'ttfts'");
    r.output_tokens = tokens;
    log.requests.push_back(r);
  }
  log.note = left_out.note(log.requests.size());
  return log;
}

// "median_ttft_ms"; else false.
bool parse_total(const std::string& key, std::string& metric, std::string& statistic) {
  static const std::map<std::string, std::string> metrics = {
      {"ttft", "ttft"}, {"tpot", "tpot"}, {"itl", "itl"}, {"e2el", "e2e"}, {"e2e_latency", "e2e"}};
  constexpr std::string_view kUnit = "_ms";
  const std::size_t first = key.find('_');
  if (!key.ends_with(kUnit) || first == std::string::npos || first + 1 > key.size() - kUnit.size()) return false;
  const auto found = metrics.find(key.substr(first + 1, key.size() - kUnit.size() - first - 1));
  if (found == metrics.end()) return false;
  metric = found->second;
  statistic = key.substr(0, first) == "median" ? "p50" : key.substr(0, first);
  return is_statistic(statistic);
}

// Without lists: 'mean_ttft_ms', 'p99_tpot_ms', ...
RealLog read_totals(const Json& root, const LogText& text) {
  const std::string& file = text.file();
  RealLog log;
  log.is_of_client = true;
  log.has_clock = false;
  for (const auto& [key, value] : root.items()) {
    LogStatistic s;
    if (!parse_total(key, s.metric, s.statistic) || value.is_null()) continue;
    s.place = text.place_of({key});
    s.value_ms = number_in(value, s.place);
    log.statistics.push_back(s);
  }
  LeftOut left_out;
  if (root.contains("completed")) log.num_completed = count_in(root["completed"], file + ": 'completed'");
  if (root.contains("failed")) left_out.add("failed", static_cast<std::size_t>(count_in(root["failed"], file + ": 'failed'")));
  log.note = left_out.note(static_cast<std::size_t>(log.num_completed)) +
             "without lists per request, so its statistics are compared; --save-detailed (vllm bench serve) or --output-details (SGLang) "
             "writes them\n";
  return log;
}

// `vllm bench serve --save-result`, lists with --save-detailed; SGLang's bench_serving with --output-details.
bool is_bench_serve_log(const LogText& log) { return is_bench_result(log.first_line()) || is_bench_result(log.whole()); }

RealLog read_bench_serve_log(const LogText& log) {
  const Json& root = log.whole();
  if (!is_bench_result(root))
    throw InputError(log.file() + ": holds several benchmark results, one per line; leave the one to compare with");
  RealLog read = root.contains("ttfts") ? read_rows(root, log.file()) : read_totals(root, log);
  read.model = text_in(root, {{"model_id"}, {"server_info", "model_path"}});  // SGLang
  return read;
}

using BenchServe = LogFormatOf<is_bench_serve_log, read_bench_serve_log>;

KVLAB_REGISTER(LogFormat, BenchServe, "bench_serve", "result of vllm bench serve or of SGLang's bench_serving: JSON", "");

}  // namespace

}  // namespace kvlab
