#include "app/compare/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <ostream>

#include "app/compare/step_times.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/quantile.h"
#include "base/text.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
using Requests = std::vector<ServedRequest>;

// The runs of a results folder, by their role in a validation.
struct SimulatedRuns {
  std::vector<Requests> ensemble;
  std::vector<Requests> unjittered;  // empty unless jitter is an axis that has 0 among its values

  // A client measures from when it sends a request.
  void count_from_arrival() {
    for (std::vector<Requests>* runs : {&ensemble, &unjittered})
      for (Requests& run : *runs)
        for (ServedRequest& r : run) r.queued_s = r.arrival_s;
  }
};

double seconds_at(const CsvTable& table, std::size_t row, std::size_t column) {
  double ns = 0;
  if (!parse_real(table.rows[row][column], ns)) {
    throw InputError(fmt::format("{}:{}: '{}' is not a number: '{}'", table.file, row + 2, table.columns[column], table.rows[row][column]));
  }
  return ns * 1e-9;
}

}  // namespace

std::map<std::string, std::vector<ServedRequest>> read_completed(const fs::path& file) {
  const CsvTable table = read_csv(file);
  const std::size_t run = table.at("run"), state = table.at("state"), arrival = table.at("arrival_ns"), queued = table.at("queued_ns"),
                    first = table.at("first_token_ns"), last = table.at("last_token_ns"), tokens = table.at("output_tokens");
  std::map<std::string, Requests> runs;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    if (table.rows[i][state] != "completed") continue;
    const auto at = [&](std::size_t column) { return seconds_at(table, i, column); };
    const auto count = static_cast<std::int64_t>(std::llround(at(tokens) * 1e9));
    runs[table.rows[i][run]].push_back({at(arrival), at(queued), at(first), at(last), count});
  }
  return runs;
}

namespace {

// The position of the jitter axis among the columns between `run` and `seed`, or npos. Other axes that vary are an error: a
// validation is about one configuration.
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

SimulatedRuns load_runs(const fs::path& folder) {
  const CsvTable summary = read_csv(folder / "summary.csv");
  if (summary.rows.empty()) throw InputError(summary.file + ": has no runs");
  const std::size_t jitter = jitter_column(summary), run = summary.at("run");
  std::map<std::string, Requests> requests = read_completed(folder / "requests.csv");
  SimulatedRuns runs;
  for (const auto& row : summary.rows) {
    double jitter_ms = 1;
    if (jitter != std::string::npos) parse_real(row[jitter], jitter_ms);
    (jitter_ms > 0 ? runs.ensemble : runs.unjittered).push_back(requests[row[run]]);
  }
  if (runs.ensemble.empty()) runs.ensemble = runs.unjittered;
  return runs;
}

std::string ms(double value) { return std::isfinite(value) ? fmt::format("{:.6f}", value) : ""; }
std::string percent(double frac) { return std::isfinite(frac) ? fmt::format("{:+.2f}%", 100 * frac) : ""; }

// One file of a validation, and its printed form.
struct Comparison {
  std::string csv, text;
};

constexpr double kDoubtfulFactor = 100;  // units differ by 1000

// Compares the median end-to-end latencies; "" where they may well be in one unit.
std::string remark_on_unit(double real_ms, double simulated_ms) {
  const double factor = real_ms / simulated_ms;
  if (factor > 1 / kDoubtfulFactor && factor < kDoubtfulFactor) return "";
  return fmt::format("the log's median end-to-end latency is {:.4g} times the simulation's: are its times in seconds?\n", factor);
}

// validation.csv, and the same for people with the unjittered run beside it.
Comparison compare_latencies(const RequestLog& log, const SimulatedRuns& runs) {
  const Requests& real = log.requests;
  const std::vector<MetricRow> real_rows = latency_statistics(real);
  std::vector<std::vector<MetricRow>> simulated;
  for (const Requests& run : runs.ensemble) simulated.push_back(latency_statistics(run));
  const std::vector<MetricRow> plain = runs.unjittered.empty() ? std::vector<MetricRow>{} : latency_statistics(runs.unjittered[0]);
  std::string csv = "metric,statistic,real,simulated,simulated_lo,simulated_hi,diff_frac\n", remark;
  std::vector<std::vector<std::string>> table;
  for (std::size_t i = 0; i < real_rows.size(); ++i) {
    if (real_rows[i].metric == kFirstTtft && real.size() <= kFirstRequests) continue;  // the same as of all
    std::vector<double> values;
    for (const auto& run : simulated) values.push_back(run[i].value_ms);
    const double middle = median(values), real_ms = real_rows[i].value_ms, diff = middle / real_ms - 1;
    if (real_rows[i].metric == "e2e" && real_rows[i].statistic == "p50") remark = remark_on_unit(real_ms, middle);
    const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    const std::vector<std::string> row = {real_rows[i].metric, real_rows[i].statistic, ms(real_ms), ms(middle), ms(*lo), ms(*hi), ms(diff)};
    csv += csv_line(row);
    const auto shown = [](double v) { return std::isfinite(v) ? fmt::format("{:.1f}", v) : ""; };
    const bool has_plain = !plain.empty();
    table.push_back({row[0], row[1], shown(real_ms), shown(middle), shown(*lo), shown(*hi), percent(diff),
                     has_plain ? shown(plain[i].value_ms) : "", has_plain ? percent(plain[i].value_ms / real_ms - 1) : ""});
  }
  std::string text = log.note + fmt::format("real {} requests; simulated: median and range of {} runs; milliseconds, from {}\n",
                                            real.size(), runs.ensemble.size(), log.is_of_client ? "arrival" : "queued");
  if (runs.ensemble[0].size() != real.size())
    text += fmt::format("{} requests of the log are compared with {} of the simulation: the two did not serve the same\n", real.size(),
                        runs.ensemble[0].size());
  text += text_table({"metric", "statistic", "real", "simulated", "lo", "hi", "diff", "unjittered", "diff"}, table) + remark;
  return {csv, text};
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

// Sizes that both logs tell something about.
Comparison compare_steps(const Requests& real, const std::vector<Requests>& simulated) {
  std::map<std::int64_t, std::pair<double, double>> sums;  // padded batch -> steps, their ms, over all simulated runs
  for (const Requests& run : simulated) {
    for (const StepTime& s : decode_step_times(run)) {
      sums[s.padded_batch].first += static_cast<double>(s.num_steps);
      sums[s.padded_batch].second += static_cast<double>(s.num_steps) * s.mean_ms;
    }
  }
  std::string csv = "padded_batch,real_ms,simulated_ms,count,diff_frac\n";
  std::vector<std::vector<std::string>> table;
  for (const StepTime& s : decode_step_times(real)) {
    const auto found = sums.find(s.padded_batch);
    if (found == sums.end()) continue;
    const double simulated_ms = found->second.second / found->second.first, diff = simulated_ms / s.mean_ms - 1;
    csv += fmt::format("{},{:.6f},{:.6f},{},{:.6f}\n", s.padded_batch, s.mean_ms, simulated_ms, s.num_steps, diff);
    table.push_back({std::to_string(s.padded_batch), fmt::format("{:.2f}", s.mean_ms), fmt::format("{:.2f}", simulated_ms), percent(diff),
                     std::to_string(s.num_steps)});
  }
  return {csv, "steps of the decode-only tail, milliseconds by padded batch\n" +
                   text_table({"padded_batch", "real", "simulated", "diff", "real_steps"}, table)};
}

}  // namespace

void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out) {
  const fs::path& folder = results.path();
  if (!fs::exists(folder / "requests.csv")) throw InputError(folder.string() + ": holds no requests.csv; kvlab run makes one");
  const RequestLog real = read_real_log(real_requests);
  SimulatedRuns runs = load_runs(folder);
  for (const Requests& run : runs.ensemble) {
    if (run.empty()) throw InputError(folder.string() + "/requests.csv: a run has no completed request");
  }
  if (real.is_of_client) runs.count_from_arrival();
  std::vector<std::pair<const char*, Comparison>> files{{"validation.csv", compare_latencies(real, runs)}};
  if (real.has_clock)
    files.emplace_back("throughput.csv",
                       compare_throughput(real.requests, runs.unjittered.empty() ? runs.ensemble[0] : runs.unjittered[0]));
  if (!real.is_of_client) files.emplace_back("validation_steps.csv", compare_steps(real.requests, runs.ensemble));
  std::map<std::string, std::string> texts;  // none is written before all are compared
  for (const auto& [name, file] : files) texts[name] = file.csv;
  for (const char* name : kValidationFiles)
    if (!texts.contains(name)) results.remove(name);
  results.replace_texts(texts);
  for (const auto& [name, file] : files)
    if (out != nullptr) *out << file.text;
}

}  // namespace kvlab
