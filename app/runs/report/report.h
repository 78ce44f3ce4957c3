#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/results/view.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/experiment.h"
#include "base/csv.h"

namespace kvlab {

struct RunState {
  enum Outcome { kNotRun, kUnchanged, kDone, kBadInput, kFailed } outcome = kNotRun;
  std::string message;
  double wall_s = 0;
};

// Indices of runs with results.
std::vector<std::size_t> complete_runs(const std::vector<RunState>& states);

// "scheduler=sarathi seed=2".
std::string run_title(const Experiment& experiment, const RunSpec& run);

// Writes manifest.json and resolved.yaml. view: its included rows become entries.
void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs, const View& view,
                    ResultsFolder& folder, double wall_s);

Experiment complete_part(const Experiment& experiment, const std::vector<RunState>& states);
// Number and titles, if any.
void report_failures(const Experiment& experiment, const std::vector<RunState>& states, std::ostream& err);

void print_report(const RunKind& kind, const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder,
                  std::ostream& out);

struct SweepReport {
  CsvTable summary;  // run, axes, seed, other columns
  std::size_t num_axes = 0;
  bool has_seeds = false;
  const ResultsFolder& folder;
};

// Varying columns and `metrics` with values; a row per run or per mean over seeds.
void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out);
// "run ID", "3 runs from ID", "all 9 runs".
std::string runs_text(const std::vector<std::string>& runs, std::size_t num_runs);
// Each remark once. Sentences with few differing words are joined.
void print_remarks(const SweepReport& report, std::ostream& out);

// Empty if missing.
nlohmann::ordered_json manifest_of_run(const ResultsFolder& folder, const std::string& id);

// A line per run: share of right answers per task (lengths pooled), mean, and costs.
void print_accuracy(const CsvTable& summary, std::ostream& out);

}  // namespace kvlab
