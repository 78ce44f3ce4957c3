#include <algorithm>
#include <cmath>

#include "app/export/export_format.h"
#include "base/text.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

using RowJson = nlohmann::ordered_json;

std::int64_t setting_or_one(const ExportedRun& run, const char* path) {
  long long value = 1;
  parse_integer(run.setting(path), value);
  return value;
}

// `column` of summary.csv, else the end of the range. nullopt without such a search.
std::optional<std::int64_t> searched(const ExportedRun& run, const char* column, const char* easiest_end) {
  if (const auto chosen = run.number(column)) return std::llround(*chosen);
  long long end = 0;
  return parse_integer(run.setting(easiest_end), end) ? std::optional<std::int64_t>(end) : std::nullopt;
}

// nullopt for an open loop.
std::optional<std::int64_t> users_of(const ExportedRun& run) {
  if (const auto found = searched(run, "search_concurrency", "search.concurrency.0")) return found;
  long long users = 0;
  for (const auto& [path, value] : run.settings)
    if (path.starts_with("trace.") && path.ends_with(".concurrency") && parse_integer(value, users)) return users;
  return std::nullopt;
}

// "h100", or "h100+l40s" for pools.
std::string hardware_of(const ExportedRun& run) {
  if (!run.manifest.contains("pools")) return run.manifest.value("hardware", "");
  std::vector<std::string> names;
  for (const auto& pool : run.manifest["pools"])
    if (const std::string name = pool.value("hardware", ""); std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return join(names, "+");
}

void add_seconds(RowJson& row, const std::string& metric, const std::vector<double>& values_ms) {
  if (values_ms.empty()) return;
  for (const auto& [name, statistic] : {std::pair{"mean", "mean"}, {"median", "p50"}, {"std", "std"}, {"p90", "p90"}, {"p99", "p99"}})
    row[std::string(name) + "_" + metric] = 1e-3 * statistic_of(values_ms, statistic);
}

// Inverse of TPOT.
void add_interactivity(RowJson& row, const std::vector<double>& tpot_ms) {
  if (tpot_ms.empty()) return;
  for (const auto& [name, statistic] : {std::pair{"mean", "mean"}, {"median", "p50"}, {"p90", "p90"}, {"p99", "p99"}})
    if (const double ms = statistic_of(tpot_ms, statistic); ms > 0) row[std::string(name) + "_intvty"] = 1e3 / ms;
}

double mean_tokens(const std::vector<RequestRow>& requests, std::int64_t RequestRow::*tokens) {
  std::vector<double> values;
  for (const RequestRow& r : requests)
    if (r.is_completed() && !r.is_warm_up) values.push_back(static_cast<double>(r.*tokens));
  return statistic_of(values, "mean");
}

void add_text(RowJson& row, const char* key, const std::string& text) {
  if (!text.empty()) row[key] = text;
}

RowJson inferencex_row(const ExportedRun& run) {
  const std::vector<RequestRow> requests = run.requests();
  RowJson row;
  add_text(row, "hw", hardware_of(run));
  if (const auto users = users_of(run)) row["conc"] = *users;
  add_text(row, "model", run.manifest.value("model", ""));
  row["framework"] = "kvlab";
  row["disagg"] = run.manifest.contains("pools");
  for (const auto& [key, tokens] : {std::pair{"isl", &RequestRow::prompt_tokens}, {"osl", &RequestRow::output_tokens}})
    if (const double mean = mean_tokens(requests, tokens); std::isfinite(mean)) row[key] = mean;
  if (!run.manifest.contains("pools")) {
    row["tp"] = searched(run, "search_tp", "search.tp.1").value_or(setting_or_one(run, "parallel.tp"));
    for (const char* const degree : {"pp", "ep"}) row[degree] = setting_or_one(run, (std::string("parallel.") + degree).c_str());
    row["dp_attention"] = setting_or_one(run, "parallel.dp") > 1;
  }
  const std::optional<double> prompts = run.number("prompt_tokens_per_s"), outputs = run.number("output_tokens_per_s");
  const bool is_on_gpus = run.manifest.contains("hardware") || run.manifest.contains("pools");
  if (const std::optional<double> gpus = run.number("gpus"); is_on_gpus && gpus && *gpus > 0 && prompts && outputs) {
    row["tput_per_gpu"] = (*prompts + *outputs) / *gpus;
    row["input_tput_per_gpu"] = *prompts / *gpus;
    row["output_tput_per_gpu"] = *outputs / *gpus;
  }
  const LatencyValues values = latency_values(requests);
  add_seconds(row, "ttft", values.ttft);
  add_seconds(row, "tpot", values.tpot);
  for (const auto& [key, column] : {std::pair{"mean_itl", "itl_mean_ms"}, {"median_itl", "itl_p50_ms"}, {"p99_itl", "itl_p99_ms"}})
    if (const auto ms = run.number(column)) row[key] = 1e-3 * *ms;
  add_seconds(row, "e2el", values.e2e);
  add_interactivity(row, values.tpot);
  row["kvlab_run"] = run.id;
  for (const auto& [axis, label] : run.axes) row["kvlab_axes"][axis] = label;
  return row;
}

// InferenceX's published rows, one per run: times in seconds, throughput per GPU.
class InferenceX final : public ExportFormat {
 public:
  explicit InferenceX(Params& /*none*/) {}
  [[nodiscard]] bool is_per_run() const override { return false; }
  void write(const ExportSource& source, const ExportOptions& /*options*/, ExportFolder& out) const override {
    RowJson rows = RowJson::array();
    for (const ExportedRun& run : source.runs) rows.push_back(inferencex_row(run));
    out.write("inferencex.json", rows.dump(2) + "\n");
  }
};

KVLAB_REGISTER(ExportFormat, InferenceX, "inferencex", "inferencex.json, a row per run: seconds, per-GPU throughput, interactivity", "");

}  // namespace

}  // namespace kvlab
