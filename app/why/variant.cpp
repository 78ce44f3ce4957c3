#include "app/why/variant.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/run.h"
#include "app/runs/sweep/stop_signals.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Without "file:line: " of the run's own resolved.yaml.
std::string reason_of(const std::exception& e) {
  std::string text = e.what();
  if (const std::size_t at = text.find("resolved.yaml"); at != std::string::npos)
    if (const std::size_t colon = text.find(": ", at); colon != std::string::npos) text = text.substr(colon + 2);
  if (text.starts_with("--set ") && text.find(": ") != std::string::npos) text = text.substr(text.find(": ") + 2);
  return text.substr(0, text.find('\n'));
}

// The highest that attains and at most two above it, without the present load. best: its row.
std::vector<Tried> loads_of(const fs::path& run, const Change& change, const WhyMetric& metric, const Tried& best) {
  const CsvTable table = read_csv(run / "search.csv");
  const auto value = [&](const std::vector<std::string>& row, const std::string& column) {
    double v = 0;
    return table.has(column) && parse_real(row[table.at(column)], v) ? v : kNone;
  };
  auto rows = table.rows;
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return value(a, "value") > value(b, "value"); });
  std::vector<Tried> tried;
  for (std::size_t i = 1; i < rows.size(); ++i) {  // the first is the present load, or attains
    const bool attains = rows[i][table.at("attains")] == "1";
    const double load = value(rows[i], "value");
    Tried t = best;
    t.label = rows[i][table.at("varied")] == "concurrency" ? fmt::format("{:.0f} user{}", load, load == 1 ? "" : "s")
                                                           : fmt::format("{:.3g} requests/s", load);
    t.value = attains && !table.has(metric.column) ? best.value : value(rows[i], metric.column);
    t.attainment = value(rows[i], "slo_attainment_frac");
    t.attains = t.is_highest_load = attains;
    tried.push_back(std::move(t));
    if (attains) break;
  }
  constexpr std::size_t kMostShown = 3;
  if (tried.size() > kMostShown) tried.erase(tried.begin() + 1, tried.end() - 2);
  if (change.label == "a higher load" && tried.size() > 1) tried.erase(tried.begin(), tried.end() - 1);
  return tried;
}

Tried result_of(const fs::path& run, const Change& change, const WhyMetric& metric, double wanted) {
  const SummaryRow summary(run);
  Tried t{change.label, change.set, summary.number(metric.column), summary.number("slo_attainment_frac"), false, 0, false, ""};
  t.attains = metric.family == WhyFamily::kSearch ? std::isfinite(t.value) : t.attainment >= wanted;
  if (const double gpus = summary.number("gpus"); gpus > 0) t.gpus = static_cast<std::int64_t>(gpus);
  return t;
}

}  // namespace

ScratchRuns::ScratchRuns() {
  static int number = 0;
  folder_ = fs::temp_directory_path() / fmt::format("kvlab_why_{}_{}", ::getpid(), ++number);
  fs::create_directories(folder_);
}

ScratchRuns::~ScratchRuns() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

fs::path ScratchRuns::run(const fs::path& resolved, const std::vector<std::string>& set) {
  Experiment experiment = load_experiment(resolved.string(), set);
  if (experiment.runs.size() != 1) throw InputError(resolved.string() + ": is no single run");
  experiment.runs[0].id = fmt::format("v{}", ++count_);
  RunKinds kinds;
  RunOptions options;
  options.stop = &stop_requested();
  execute_run(kinds, {experiment, experiment.runs[0], folder_, {}, [] {}}, options);
  return folder_ / experiment.runs[0].id;
}

std::vector<Tried> try_changes(const fs::path& run, const std::vector<Change>& changes, const WhyMetric& metric, double wanted,
                               double within_s, std::vector<std::string>& skipped) {
  const auto began = std::chrono::steady_clock::now();
  ScratchRuns scratch;
  std::vector<Tried> all;
  for (const Change& change : changes) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    if (passed.count() > within_s) {
      skipped.push_back(change.label);
      continue;
    }
    try {
      const fs::path made = scratch.run(run / "resolved.yaml", change.set);
      const Tried one = result_of(made, change, metric, wanted);
      if (change.finds_load)
        for (Tried& load : loads_of(made, change, metric, one)) all.push_back(std::move(load));
      else
        all.push_back(one);
    } catch (const InputError& e) {
      all.push_back({change.label, change.set, kNone, kNone, false, 0, false, reason_of(e)});
    }
  }
  return all;
}

void sort_by_effect(std::vector<Tried>& tried, const WhyMetric& metric) {
  const auto is_none = [](const Tried& t) { return !std::isfinite(t.value); };
  std::stable_sort(tried.begin(), tried.end(), [&](const Tried& a, const Tried& b) {
    if (is_none(a) || is_none(b)) return !is_none(a) && is_none(b);
    return metric.rises() ? a.value > b.value : a.value < b.value;
  });
}

}  // namespace kvlab
