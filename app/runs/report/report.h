#pragma once

#include <cstddef>
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

// Joins sentences of equal length in words of which at least two thirds are equal. Differing words become "21 to 67" or "A100|H100".
class JoinedTexts {
 public:
  std::size_t add(const std::string& text);
  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  [[nodiscard]] std::string text(std::size_t group) const;

 private:
  using Group = std::vector<std::vector<std::string>>;
  std::vector<Group> groups_;
};

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

// "hardware=h100 tp=4": by the varying columns 1 to `end`.
class RowTitles {
 public:
  RowTitles(const CsvTable& summary, std::size_t end);
  [[nodiscard]] std::string of(const std::vector<std::string>& row) const;

 private:
  const CsvTable& summary_;
  std::vector<std::size_t> varying_;
};

// Varying columns and `metrics` with values; a row per run or per mean over seeds.
void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out);
// "run ID", "3 runs from ID", "all 9 runs".
std::string runs_text(const std::vector<std::string>& runs, std::size_t num_runs);
// Each remark once. Sentences with few differing words are joined.
void print_remarks(const SweepReport& report, std::ostream& out);

// In the top manifest, of a run in another results folder.
nlohmann::ordered_json entry_of(const ViewRow& row, const View& view, const char* state);

// Empty if missing.
nlohmann::ordered_json manifest_of_run(const ResultsFolder& folder, const std::string& id);

// A line per run: share of right answers per task (lengths pooled), mean, and costs.
void print_accuracy(const CsvTable& summary, std::ostream& out);

// For searches for fewest replicas or GPUs: sorts rows by attaining, price, then GPUs, and returns a line on the first. Otherwise, or for
// one row: "".
std::string put_answer_first(CsvTable& summary, std::size_t num_axes);

}  // namespace kvlab
