#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

using Json = nlohmann::json;

// {"metadata": {...}, "metrics": {NAME: {"value": ..., "unit": ...}}, "error": ...}.
class AiperfRow {
 public:
  AiperfRow(const Json& row, std::string where) : row_(row), where_(std::move(where)) {}

  static bool is_one(const Json& row) { return row.is_object() && row.contains("metadata") && row.contains("metrics"); }

  [[nodiscard]] bool is_warm_up() const { return metadata("benchmark_phase") == "warmup"; }
  // "": none.
  [[nodiscard]] std::string id() const {
    const Json id = metadata("x_request_id");
    return id.is_string() ? id.get<std::string>() : "";
  }
  [[nodiscard]] bool is_cancelled() const { return metadata("was_cancelled") == true; }
  [[nodiscard]] bool has_failed() const { return member_of(row_, {"error"}) != nullptr; }
  [[nodiscard]] std::int64_t start_ns() const {
    const Json start = metadata("request_start_ns");
    if (!start.is_number_integer()) throw InputError(where_ + ": 'metadata' has no 'request_start_ns' in whole nanoseconds");
    return start.get<std::int64_t>();
  }
  [[nodiscard]] ServedRequest read(std::int64_t origin_ns) const {
    ServedRequest r;
    r.arrival_s = r.queued_s = static_cast<double>(start_ns() - origin_ns) * 1e-9;
    r.first_token_s = r.queued_s + seconds("time_to_first_token");
    r.last_token_s = r.queued_s + seconds("request_latency");
    const char* const tokens = row_["metrics"].contains("output_sequence_length") ? "output_sequence_length" : "output_token_count";
    r.output_tokens = count_in(metric(tokens).value("value", Json()), where_ + ": '" + tokens + "'");
    if (r.output_tokens < 1) throw InputError(where_ + ": '" + tokens + "' is 0 in a request that did not fail");
    if (r.last_token_s < r.first_token_s) throw InputError(where_ + ": 'request_latency' is below 'time_to_first_token'");
    return r;
  }

 private:
  [[nodiscard]] Json metadata(const char* key) const {
    const Json* const value = member_of(row_, {"metadata", key});
    return value == nullptr ? Json() : *value;
  }
  [[nodiscard]] const Json& metric(const char* name) const {
    const Json* const found = member_of(row_, {"metrics", name});
    if (found == nullptr || !found->is_object())
      throw InputError(fmt::format("{}: has no metric '{}'; AIPerf records it with --streaming", where_, name));
    return *found;
  }
  [[nodiscard]] double seconds(const char* name) const {
    const Json& m = metric(name);
    const Json unit = m.value("unit", Json("ms"));
    return seconds_in(m.value("value", Json()), unit.is_string() ? unit.get<std::string>() : "?", where_ + ": '" + name + "'");
  }

  const Json& row_;
  std::string where_;
};

RealLog read_aiperf_rows_log(const LogText& text) {
  RealLog log;
  log.is_of_client = true;
  LeftOut left_out;
  std::optional<std::int64_t> origin_ns;  // instants since 1970 lose nanoseconds in a double
  text.each_line([&](const std::string& line, const std::string& where) {
    refuse_deep_json(line, where);
    const Json parsed = Json::parse(line, nullptr, false);
    if (!AiperfRow::is_one(parsed)) throw InputError(where + ": not a row of AIPerf, as those above: it has no 'metadata' and 'metrics'");
    const AiperfRow row(parsed, where);
    if (!origin_ns) origin_ns = row.start_ns();
    if (left_out.is_repeated(row.id())) return;
    if (row.is_warm_up())
      left_out.add("are of its warm-up");
    else if (row.is_cancelled())
      left_out.add("were cancelled");
    else if (row.has_failed())
      left_out.add("failed");
    else
      log.requests.push_back(row.read(*origin_ns));
  });
  log.note = left_out.note(log.requests.size());
  return log;
}

// AIPerf's profile_export.jsonl.
bool is_aiperf_rows_log(const LogText& log) { return AiperfRow::is_one(log.first_line()); }

using AiperfRows = LogFormatOf<is_aiperf_rows_log, read_aiperf_rows_log>;

KVLAB_REGISTER(LogFormat, AiperfRows, "aiperf_rows", "AIPerf's profile_export.jsonl: an object per request", "");

constexpr std::pair<const char*, const char*> kAiperfMetrics[] = {
    {"time_to_first_token", "ttft"}, {"inter_token_latency", "tpot"}, {"request_latency", "e2e"}};

void add_aiperf_metric(const Json& entry, const char* name, const char* metric, const LogText& text, RealLog& log) {
  const Json unit = entry.value("unit", Json());
  for (const auto& [key, value] : entry.items()) {
    const std::string statistic = key == "avg" ? "mean" : key;
    if (!is_statistic(statistic) || value.is_null()) continue;
    const std::string place = text.place_of({name, key});
    const double seconds = seconds_in(value, unit.is_string() ? unit.get<std::string>() : short_json(unit), place);
    log.statistics.push_back({metric, statistic, 1e3 * seconds, {}, place});
  }
}

// Average of a count such as 'request_count'; 0 if absent.
std::size_t aiperf_count(const Json& root, const char* name, const std::string& file) {
  const Json* const count = member_of(root, {name, "avg"});
  return count == nullptr ? 0 : static_cast<std::size_t>(count_in(*count, fmt::format("{}: '{}'", file, name)));
}

// From the configuration or command line; "" if several.
std::string aiperf_model(const Json& root) {
  const std::string configured = text_in(root, {{"input_config", "endpoint", "model_names"}});
  if (!configured.empty()) return configured;
  std::string command = text_in(root, {{"run_info", "cli_command"}});
  std::erase_if(command, [](char c) { return c == '\'' || c == '"'; });  // AIPerf quotes values
  std::ranges::replace(command, '=', ' ');
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    if (word != "--model" && word != "--model-names" && word != "-m") continue;
    words >> word;
    return word.find(',') == std::string::npos ? word : "";
  }
  return "";
}

// profile_export_aiperf.json: statistics over completed requests. Its inter-token latency is a mean per request, like TPOT.
bool is_aiperf_report_log(const LogText& log) { return member_of(log.whole(), {"request_latency", "unit"}) != nullptr; }

RealLog read_aiperf_report_log(const LogText& log) {
  const Json& root = log.whole();
  RealLog read;
  read.is_of_client = true;
  read.model = aiperf_model(root);
  read.has_clock = false;
  for (const auto& [name, metric] : kAiperfMetrics)
    if (const Json* const entry = member_of(root, {name}); entry != nullptr && entry->is_object())
      add_aiperf_metric(*entry, name, metric, log, read);
  read.num_completed = static_cast<std::int64_t>(aiperf_count(root, "request_count", log.file()));
  LeftOut left_out;
  left_out.add("failed", aiperf_count(root, "error_request_count", log.file()));
  read.note = left_out.note(static_cast<std::size_t>(read.num_completed));
  if (root.value("was_cancelled", Json()) == true) read.note += "the benchmark was cancelled before its end\n";
  read.note += "without rows per request, so its statistics are compared; profile_export.jsonl beside it has the rows\n";
  return read;
}

using AiperfReport = LogFormatOf<is_aiperf_report_log, read_aiperf_report_log>;

KVLAB_REGISTER(LogFormat, AiperfReport, "aiperf_report", "AIPerf's profile_export_aiperf.json: statistics", "");

}  // namespace

}  // namespace kvlab
