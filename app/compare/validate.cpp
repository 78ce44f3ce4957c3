#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <utility>

#include "app/compare/compare.h"
#include "app/results/run_folder.h"
#include "base/config/spec_file.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/quantile.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/model_file.h"
#include "traces/logs/real_log.h"

namespace kvlab {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

void SimulatedRuns::count_from_arrival() {
  for (std::vector<SimulatedRun>* runs : {&ensemble, &unjittered})
    for (SimulatedRun& run : *runs)
      for (ServedRequest& r : run.requests) r.queued_s = r.arrival_s;
}

namespace {

Json manifest_at(const RunPlace& run) {
  Json m = read_json_object<Json>(run.folder / "runs" / run.id / "manifest.json");
  return m.is_null() ? Json::object() : m;
}

// Or its pools' texts joined.
std::string text_at(const Json& manifest, const std::string& key) {
  if (manifest.contains(key) && manifest[key].is_string()) return manifest[key].get<std::string>();
  std::vector<std::string> texts;
  const Json pools = manifest.value("pools", Json::array());
  for (const Json& pool : pools)
    if (pool.contains(key) && pool[key].is_string()) texts.push_back(pool[key].get<std::string>());
  return join(texts, ", ");
}

std::string profile_at(const Json& manifest) {
  const Json profile = manifest.value("profile", Json::object());
  return profile.is_object() && profile.contains("name") ? profile.value("name", "") + " " + profile.value("hash", "") : "";
}

// Inputs below a key, such as a trace's `file`.
struct KeyedInputs {
  std::set<std::string> fingerprints;
  std::vector<std::string> names;
};

KeyedInputs inputs_of(const Json& manifest, const std::string& key) {
  KeyedInputs found;
  const Json inputs = manifest.value("inputs", Json::object());
  for (const auto& [label, fingerprint] : inputs.items()) {
    if (!label.starts_with(key + ": ") || !fingerprint.is_string()) continue;
    found.fingerprints.insert(fingerprint.get<std::string>());
    found.names.push_back(label.substr(key.size() + 2) + " " + fingerprint.get<std::string>());
  }
  return found;
}

void add_if_different(std::vector<std::string>& remarks, const std::string& what, const std::string& a, const std::string& b) {
  if (a != b && !a.empty() && !b.empty()) remarks.push_back(fmt::format("the {} differ ({} and {})", what, a, b));
}

// `trace: {generate: ...}`, or "".
std::string generator_of(const RunPlace& run) {
  const YAML::Node trace = node_at(read_run_settings(run.folder / "runs" / run.id).tree, "trace");
  return node_at(trace, "generate").IsDefined() ? YAML::Dump(trace) : "";
}

double seconds_at(const CsvTable& table, std::size_t row, std::size_t column) {
  double ns = 0;
  if (!parse_real(table.rows[row][column], ns)) {
    throw InputError(fmt::format("{}:{}: '{}' is not a number: '{}'", table.file, row + 2, table.columns[column], table.rows[row][column]));
  }
  return ns * 1e-9;
}

// npos if absent. Throws if another axis varies.
std::size_t jitter_column(const CsvTable& summary) {
  std::size_t found = std::string::npos;
  for (std::size_t c = 1; c < summary.at("seed"); ++c) {
    if (summary.columns[c].ends_with("jitter_ms")) {
      found = c;
      continue;
    }
    for (const auto& row : summary.rows) {
      if (row[c] != summary.rows[0][c]) {
        throw InputError(
            fmt::format("{}: '{}' varies ({}, {}): a validation compares one configuration with the log; run it alone, with --set {}={}",
                        summary.file, summary.columns[c], summary.rows[0][c], row[c], summary.columns[c], row[c]));
      }
    }
  }
  return found;
}

std::map<std::string, double> gaps_of(const CsvTable& summary, const std::vector<std::string>& row) {
  std::map<std::string, double> found;
  for (const char* const statistic : {"mean", "p50", "p90", "p95", "p99", "max"}) {
    const std::string column = fmt::format("itl_{}_ms", statistic);
    double value = 0;
    if (summary.has(column) && parse_real(row[summary.at(column)], value)) found[statistic] = value;
  }
  return found;
}

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
  const bool has_rows = !log.requests.empty();
  const std::int64_t real = has_rows ? std::ssize(log.requests) : log.num_completed, simulated = std::ssize(runs.ensemble[0].requests);
  std::string text = log.note + fmt::format("real{}; simulated: median and range of {} runs; milliseconds, from {}\n",
                                            real > 0 ? fmt::format(" {} requests", real) : ": statistics", runs.ensemble.size(),
                                            has_rows && !log.is_of_client ? "queued" : "arrival");
  if (real > 0 && real != simulated)
    text +=
        fmt::format("{} are compared with {} of the simulation: the two did not serve the same\n",
                    has_rows ? fmt::format("{} requests of the log", real) : fmt::format("statistics over {} requests", real), simulated);
  return text;
}

// For a log without rows. With histograms, columns real_lo and real_hi have the bucket.
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

using Requests = std::vector<ServedRequest>;

constexpr double kDoubtfulFactor = 100;  // units differ by 1000

// "" if median latencies may share a unit.
std::string remark_on_unit(double real_ms, double simulated_ms) {
  const double factor = real_ms / simulated_ms;
  if (factor > 1 / kDoubtfulFactor && factor < kDoubtfulFactor) return "";
  return fmt::format("the log's median end-to-end latency is {:.4g} times the simulation's: are its times in seconds?\n", factor);
}

// Text: with the unjittered run.
Comparison compare_latencies(const RealLog& log, const SimulatedRuns& runs) {
  const Requests& real = log.requests;
  const std::vector<MetricRow> real_rows = latency_statistics(real);
  std::vector<std::vector<MetricRow>> simulated;
  for (const SimulatedRun& run : runs.ensemble) simulated.push_back(latency_statistics(run.requests));
  const std::vector<MetricRow> plain = runs.unjittered.empty() ? std::vector<MetricRow>{} : latency_statistics(runs.unjittered[0].requests);
  std::string csv = "metric,statistic,real,simulated,simulated_lo,simulated_hi,diff_frac,real_requests,simulated_requests\n", remark;
  std::vector<std::vector<std::string>> table;
  for (std::size_t i = 0; i < real_rows.size(); ++i) {
    if (real_rows[i].metric == kFirstTtft && real.size() <= kFirstRequests) continue;  // equal to all
    std::vector<double> values;
    for (const auto& run : simulated) values.push_back(run[i].value_ms);
    const double middle = median(values), real_ms = real_rows[i].value_ms, diff = middle / real_ms - 1;
    if (real_rows[i].metric == "e2e" && real_rows[i].statistic == "p50") remark = remark_on_unit(real_ms, middle);
    const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    std::vector<std::string> row = {real_rows[i].metric, real_rows[i].statistic, ms_text(real_ms), ms_text(middle),
                                    ms_text(*lo),        ms_text(*hi),           ms_text(diff)};
    row.insert(row.end(), {std::to_string(real_rows[i].num_requests), std::to_string(simulated[0][i].num_requests)});
    csv += csv_line(row);
    const bool has_plain = !plain.empty();
    table.push_back({row[0], row[1], shown(real_ms), shown(middle), shown(*lo), shown(*hi), percent_text(diff),
                     has_plain ? shown(plain[i].value_ms) : "", has_plain ? percent_text(plain[i].value_ms / real_ms - 1) : ""});
  }
  return {csv, head_of(log, runs) +
                   text_table({"metric", "statistic", "real", "simulated", "lo", "hi", "diff", "unjittered", "diff"}, table) + remark};
}

Comparison compare_throughput(const Requests& real, const Requests& simulated) {
  constexpr double kBinSeconds = 1;
  const std::vector<double> a = token_rate(real, kBinSeconds), b = token_rate(simulated, kBinSeconds);
  std::string csv = "time_s,real_tokens_per_s,simulated_tokens_per_s\n";
  const auto at = [](const std::vector<double>& rates, std::size_t i) { return i < rates.size() ? rates[i] : 0.0; };
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    csv += fmt::format("{:.3f},{:.3f},{:.3f}\n", static_cast<double>(i) * kBinSeconds, at(a, i), at(b, i));
  }
  return {csv, ""};
}

// Only sizes in both logs.
Comparison compare_steps(const Requests& real, const std::vector<SimulatedRun>& simulated) {
  std::map<std::int64_t, std::pair<double, double>> sums;  // padded batch -> (steps, ms) over simulated runs
  for (const SimulatedRun& run : simulated) {
    for (const BatchTime& s : decode_step_times(run.requests)) {
      sums[s.padded_batch].first += static_cast<double>(s.num_steps);
      sums[s.padded_batch].second += static_cast<double>(s.num_steps) * s.mean_ms;
    }
  }
  std::string csv = "padded_batch,real_ms,simulated_ms,count,diff_frac\n";
  std::vector<std::vector<std::string>> table;
  for (const BatchTime& s : decode_step_times(real)) {
    const auto found = sums.find(s.padded_batch);
    if (found == sums.end()) continue;
    const double simulated_ms = found->second.second / found->second.first, diff = simulated_ms / s.mean_ms - 1;
    csv += fmt::format("{},{:.6f},{:.6f},{},{:.6f}\n", s.padded_batch, s.mean_ms, simulated_ms, s.num_steps, diff);
    table.push_back({std::to_string(s.padded_batch), fmt::format("{:.2f}", s.mean_ms), fmt::format("{:.2f}", simulated_ms),
                     percent_text(diff), std::to_string(s.num_steps)});
  }
  return {csv, "steps of the decode-only tail, milliseconds by padded batch\n" +
                   text_table({"padded_batch", "real", "simulated", "diff", "real_steps"}, table)};
}

}  // namespace

std::string remark_on_model(const std::string& logged, const RunPlace& simulated) {
  const std::string ours = text_at(manifest_at(simulated), "model"), folder = profiles_folder() + "/models";
  if (logged.empty() || ours.empty() || logged == ours) return "";
  const std::string theirs = shipped_model_of(logged, folder), own = shipped_model_of(ours, folder);
  if (!theirs.empty() && theirs == own) return "";
  if (!theirs.empty() && !own.empty())
    return fmt::format("the log is of model {}, and {} is simulated: part of the difference comes from the models\n", logged, ours);
  return fmt::format(
      "the log is of model {}, and {} is simulated: it cannot be told whether they are the same, since {} is in none of "
      "profiles/hugging_face.yaml and profiles/models\n",
      logged, ours, theirs.empty() ? logged : ours);
}

std::vector<std::string> remarks_on_settings(const RunPlace& a, const RunPlace& b) {
  std::vector<std::string> remarks;
  const Json of_a = manifest_at(a), of_b = manifest_at(b);
  for (const auto& [key, what] : {std::pair{"model", "models"}, {"hardware", "GPUs"}}) {
    const std::string name_a = text_at(of_a, key), name_b = text_at(of_b, key);
    add_if_different(remarks, what, name_a, name_b);
    if (name_a == name_b && inputs_of(of_a, key).fingerprints != inputs_of(of_b, key).fingerprints && !name_a.empty())
      remarks.push_back(fmt::format("the files of {} {} differ in content", key, name_a));
  }
  add_if_different(remarks, "profiles", profile_at(of_a), profile_at(of_b));
  const KeyedInputs trace_a = inputs_of(of_a, "file"), trace_b = inputs_of(of_b, "file");
  if (trace_a.fingerprints != trace_b.fingerprints)
    add_if_different(remarks, "contents of the trace files", join(trace_a.names, ", "), join(trace_b.names, ", "));
  if (generator_of(a) != generator_of(b) || trace_a.names.empty() != trace_b.names.empty())
    remarks.emplace_back("the traces are generated by other settings, or one of them is read from a file");
  return remarks;
}

std::map<std::string, std::vector<ServedRequest>> read_completed(const fs::path& file) {
  const CsvTable table = read_csv(file);
  const std::size_t run = table.at("run"), state = table.at("state"), arrival = table.at("arrival_ns"), queued = table.at("queued_ns"),
                    first = table.at("first_token_ns"), last = table.at("last_token_ns"), tokens = table.at("output_tokens");
  std::map<std::string, std::vector<ServedRequest>> runs;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (table.rows[i][state] != "completed") continue;
    const auto at = [&](std::size_t column) { return seconds_at(table, i, column); };
    const auto count = static_cast<std::int64_t>(std::llround(at(tokens) * 1e9));
    runs[table.rows[i][run]].push_back({at(arrival), at(queued), at(first), at(last), count});
  }
  return runs;
}

SimulatedRuns load_simulated_runs(const fs::path& folder) {
  const CsvTable summary = read_csv(folder / "summary.csv");
  if (summary.rows.empty()) throw InputError(summary.file + ": has no runs");
  const std::size_t jitter = jitter_column(summary), run = summary.at("run");
  std::map<std::string, std::vector<ServedRequest>> requests = read_completed(folder / "requests.csv");
  SimulatedRuns runs;
  runs.first_id = summary.rows[0][run];
  for (const auto& row : summary.rows) {
    double jitter_ms = 1;
    if (jitter != std::string::npos) parse_real(row[jitter], jitter_ms);
    (jitter_ms > 0 ? runs.ensemble : runs.unjittered).push_back({requests[row[run]], gaps_of(summary, row)});
  }
  if (runs.ensemble.empty()) runs.ensemble = runs.unjittered;
  return runs;
}

std::string ms_text(double value) { return std::isfinite(value) ? fmt::format("{:.6f}", value) : ""; }

std::string percent_text(double frac) { return std::isfinite(frac) ? fmt::format("{:+.2f}%", 100 * frac) : ""; }

void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out) {
  const fs::path& folder = results.path();
  if (!is_file(folder / "requests.csv"))
    throw InputError(folder.string() + ": holds no requests.csv; kvlab run makes one, unless 'output: {keep: summary}' leaves it out");
  const RealLog real = read_real_log(real_requests);
  SimulatedRuns runs = load_simulated_runs(folder);
  for (const SimulatedRun& run : runs.ensemble) {
    if (run.requests.empty()) throw InputError(folder.string() + "/requests.csv: a run has no completed request");
  }
  if (real.is_of_client) runs.count_from_arrival();
  std::vector<std::pair<const char*, Comparison>> files{
      {"validation.csv", real.requests.empty() ? compare_statistics(real, runs) : compare_latencies(real, runs)}};
  files[0].second.text += remark_on_model(real.model, {folder, runs.first_id});
  if (real.has_clock)
    files.emplace_back("throughput.csv",
                       compare_throughput(real.requests, (runs.unjittered.empty() ? runs.ensemble : runs.unjittered)[0].requests));
  if (!real.is_of_client) files.emplace_back("validation_steps.csv", compare_steps(real.requests, runs.ensemble));
  std::map<std::string, std::string> texts;  // compare all before writing any
  for (const auto& [name, file] : files) texts[name] = file.csv;
  for (const char* name : kValidationFiles)
    if (!texts.contains(name)) results.remove(name);
  results.replace_texts(texts);
  for (const auto& [name, file] : files)
    if (out != nullptr) *out << file.text;
}

}  // namespace kvlab
