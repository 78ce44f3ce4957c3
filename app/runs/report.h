#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/results/view.h"
#include "app/runs/experiment.h"
#include "app/runs/input_files.h"
#include "app/runs/run_kind.h"
#include "base/csv.h"

namespace kvlab {

// How one run of a sweep ended.
struct RunState {
  enum Outcome { kNotRun, kUnchanged, kDone, kBadInput, kFailed } outcome = kNotRun;
  std::string message;  // why it failed
  double wall_s = 0;
};

// Places of the runs whose results are there.
std::vector<std::size_t> complete_runs(const std::vector<RunState>& states);

// "scheduler=sarathi seed=2": what tells this run from the others.
std::string run_title(const Experiment& experiment, const RunSpec& run);

// manifest.json and resolved.yaml of the whole experiment. view: the tables at the top, whose rows of other results are entries too.
void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs, const View& view,
                    ResultsFolder& folder, double wall_s);

// The experiment with the runs alone whose results are there.
Experiment complete_part(const Experiment& experiment, const std::vector<RunState>& states);
// On one line, how many runs failed and which; nothing if none did.
void report_failures(const Experiment& experiment, const std::vector<RunState>& states, std::ostream& err);

// Prints the end of `kvlab run`: the report of the runs' kind.
void print_report(const RunKind& kind, const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder,
                  std::ostream& out);

// The results of a sweep, for the summary that is printed.
struct SweepReport {
  CsvTable summary;  // summary.csv: run, axes, seed and the rest
  std::size_t num_axes = 0;
  bool has_seeds = false;  // more than one
  const ResultsFolder& folder;
};

// Prints what varies and those of `metrics` that have values: a row per run, or the mean of a configuration's seeds.
void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out);
// Prints the remarks of the runs, each text once.
void print_remarks(const SweepReport& report, std::ostream& out);

// manifest.json of a run; empty: there is none.
nlohmann::ordered_json manifest_of_run(const ResultsFolder& folder, const std::string& id);

}  // namespace kvlab
