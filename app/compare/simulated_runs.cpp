#include "app/compare/simulated_runs.h"

#include <fmt/format.h>

#include <cmath>

#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

void SimulatedRuns::count_from_arrival() {
  for (std::vector<SimulatedRun>* runs : {&ensemble, &unjittered})
    for (SimulatedRun& run : *runs)
      for (ServedRequest& r : run.requests) r.queued_s = r.arrival_s;
}

namespace {

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

}  // namespace

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

}  // namespace kvlab
