#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

using AiperfJson = nlohmann::json;

constexpr std::pair<const char*, const char*> kAiperfMetrics[] = {
    {"time_to_first_token", "ttft"}, {"inter_token_latency", "tpot"}, {"request_latency", "e2e"}};

bool is_aiperf_report(const AiperfJson& root) { return root.is_object() && member_of(root, {"request_latency", "unit"}) != nullptr; }

void add_aiperf_metric(const AiperfJson& entry, const char* name, const char* metric, const LogText& text, RealLog& log) {
  const AiperfJson unit = entry.value("unit", AiperfJson());
  for (const auto& [key, value] : entry.items()) {
    const std::string statistic = key == "avg" ? "mean" : key;
    if (!is_statistic(statistic) || value.is_null()) continue;
    const std::string place = text.place_of({name, key});
    const double seconds = seconds_in(value, unit.is_string() ? unit.get<std::string>() : short_json(unit), place);
    log.statistics.push_back({metric, statistic, 1e3 * seconds, {}, place});
  }
}

// Average of a count such as 'request_count'; 0 if absent.
std::size_t aiperf_count(const AiperfJson& root, const char* name, const std::string& file) {
  const AiperfJson* const count = member_of(root, {name, "avg"});
  return count == nullptr ? 0 : static_cast<std::size_t>(count_in(*count, fmt::format("{}: '{}'", file, name)));
}

// From the configuration or command line; "" if several.
std::string aiperf_model(const AiperfJson& root) {
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
class AiperfReport final : public LogFormat {
 public:
  explicit AiperfReport(Params& /*none*/) {}
  [[nodiscard]] bool recognises(const LogText& log) const override { return is_aiperf_report(log.whole()); }
  [[nodiscard]] RealLog read(const LogText& log) const override {
    const AiperfJson& root = log.whole();
    RealLog read;
    read.is_of_client = true;
    read.model = aiperf_model(root);
    read.has_clock = false;
    for (const auto& [name, metric] : kAiperfMetrics)
      if (const AiperfJson* const entry = member_of(root, {name}); entry != nullptr && entry->is_object())
        add_aiperf_metric(*entry, name, metric, log, read);
    read.num_completed = static_cast<std::int64_t>(aiperf_count(root, "request_count", log.file()));
    LeftOut left_out;
    left_out.add("failed", aiperf_count(root, "error_request_count", log.file()));
    read.note = left_out.note(static_cast<std::size_t>(read.num_completed));
    if (root.value("was_cancelled", AiperfJson()) == true) read.note += "the benchmark was cancelled before its end\n";
    read.note += "without rows per request, so its statistics are compared; profile_export.jsonl beside it has the rows\n";
    return read;
  }
};

KVLAB_REGISTER(LogFormat, AiperfReport, "aiperf_report", "AIPerf's profile_export_aiperf.json: statistics", "");

}  // namespace

}  // namespace kvlab
