#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ostream>

#include "app/compare/compare.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/quantile.h"
#include "base/text.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

struct HostPair {
  const RunSpec* sim = nullptr;
  const RunSpec* engine = nullptr;
};

// By labels of the other axes, then the seed.
std::map<std::vector<std::string>, HostPair> pair_runs(const Experiment& experiment, std::size_t host) {
  std::map<std::vector<std::string>, HostPair> pairs;
  for (const RunSpec& run : experiment.runs) {
    std::vector<std::string> key = run.labels;
    key.erase(key.begin() + static_cast<std::ptrdiff_t>(host));
    key.push_back(std::to_string(run.seed));
    if (run.labels[host] == "sim") pairs[key].sim = &run;
    if (run.labels[host] == "engine") pairs[key].engine = &run;
  }
  std::erase_if(pairs, [](const auto& p) { return p.second.sim == nullptr || p.second.engine == nullptr; });
  return pairs;
}

bool is_compared(const MetricRow& row) { return row.statistic != "p95" && row.metric != kFirstTtft; }

std::string shown_percent(double frac) { return std::isfinite(frac) ? fmt::format("{:+.1f}%", 100 * frac) : ""; }

// By metric, ordered as latency_statistics.
using Differences = std::vector<std::pair<std::string, double>>;
using Completed = std::map<std::string, std::vector<ServedRequest>>;  // by run

double middle(std::vector<double> diffs) {
  std::erase_if(diffs, [](double d) { return !std::isfinite(d); });
  return diffs.empty() ? std::numeric_limits<double>::quiet_NaN() : median(std::move(diffs));
}

// Numbers of completed requests may differ under a stop rule.
std::string unequal_counts(const std::map<std::vector<std::string>, HostPair>& pairs, const Completed& runs) {
  std::string text;
  for (const auto& [key, pair] : pairs) {
    const std::size_t sim = runs.at(pair.sim->id).size(), engine = runs.at(pair.engine->id).size();
    if (sim != engine)
      text += fmt::format("runs {} and {}: the simulation completed {} requests, the engine {}: the two are not compared over the same\n",
                          pair.sim->id, pair.engine->id, sim, engine);
  }
  return text;
}

Differences compare_pair(const std::vector<std::string>& key, const HostPair& pair, const Completed& runs, std::string& csv) {
  const std::vector<MetricRow> real = latency_statistics(runs.at(pair.engine->id)), simulated = latency_statistics(runs.at(pair.sim->id));
  Differences differences;
  for (std::size_t i = 0; i < real.size(); ++i) {
    if (!is_compared(real[i])) continue;
    const double diff = simulated[i].value_ms / real[i].value_ms - 1;
    std::vector<std::string> row = key;
    for (const std::string& cell : {pair.sim->id, pair.engine->id, real[i].metric, real[i].statistic}) row.push_back(cell);
    for (const double value : {real[i].value_ms, simulated[i].value_ms, diff})
      row.push_back(std::isfinite(value) ? fmt::format("{:.6f}", value) : "");
    csv += csv_line(row);
    differences.emplace_back(real[i].metric + "_" + real[i].statistic, diff);
  }
  return differences;
}

}  // namespace

bool compare_hosts(const Experiment& experiment, ResultsFolder& results, double assert_frac, std::ostream* out) {
  const auto axis = std::find(experiment.axes.begin(), experiment.axes.end(), "host");
  if (axis == experiment.axes.end()) return false;
  const auto host = static_cast<std::size_t>(axis - experiment.axes.begin());
  const auto pairs = pair_runs(experiment, host);
  if (pairs.empty()) return false;
  const std::string folder = results.path().string();
  Completed requests = read_completed(results.path() / "requests.csv");
  for (const auto& [key, pair] : pairs)
    for (const RunSpec* run : {pair.sim, pair.engine})
      if (requests[run->id].empty() && assert_frac > 0)
        throw InputError(fmt::format("{}/requests.csv: run {} completed no request, so that 'max_diff_frac' {:g} has nothing to hold for",
                                     folder, run->id, assert_frac));
  std::vector<std::string> header = experiment.axes;
  header.erase(header.begin() + static_cast<std::ptrdiff_t>(host));
  for (const char* name : {"seed", "sim_run", "engine_run", "metric", "statistic", "real", "simulated", "diff_frac"})
    header.emplace_back(name);
  std::string csv = csv_line(header);
  std::map<std::vector<std::string>, std::map<std::string, std::vector<double>>> by_config;
  std::vector<std::string> metrics;
  for (const auto& [key, pair] : pairs) {
    const Differences differences = compare_pair(key, pair, requests, csv);
    for (const auto& [metric, diff] : differences) {
      by_config[{key.begin(), key.end() - 1}][metric].push_back(diff);
      if (std::find(metrics.begin(), metrics.end(), metric) == metrics.end()) metrics.push_back(metric);
    }
  }
  results.replace_texts({{"validation.csv", csv}});
  double worst = 0;
  std::string worst_at;
  std::vector<std::vector<std::string>> table;
  for (const auto& [config, diffs] : by_config) {
    std::vector<std::string> row = config;
    for (const std::string& metric : metrics) {
      const double diff = middle(diffs.at(metric));
      row.push_back(shown_percent(diff));
      if (!(std::abs(diff) > worst)) continue;
      worst = std::abs(diff);
      worst_at = metric + (config.empty() ? "" : " of " + join(config, ", "));
    }
    table.push_back(std::move(row));
  }
  if (out != nullptr) {
    std::vector<std::string> columns(header.begin(), header.begin() + static_cast<std::ptrdiff_t>(experiment.axes.size()) - 1);
    columns.insert(columns.end(), metrics.begin(), metrics.end());
    *out << "simulated / engine - 1, from queued; the median of the seeds\n" << text_table(columns, table);
    *out << (worst_at.empty() ? "nothing to compare\n" : fmt::format("furthest off: {:.1f} %, {}\n", 100 * worst, worst_at))
         << unequal_counts(pairs, requests);
  }
  if (assert_frac > 0 && !(worst <= assert_frac))
    throw InputError(fmt::format("{}/validation.csv: simulation and engine differ by {:.1f} % in {}, more than 'max_diff_frac' {:g} allows",
                                 folder, 100 * worst, worst_at, assert_frac));
  return true;
}

}  // namespace kvlab
