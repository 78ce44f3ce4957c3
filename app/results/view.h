#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/runs/experiment.h"

namespace kvlab {

// The column of an axis: its path in the YAML.
std::string axis_column(const std::string& path);

// True if the top of the folder gets this table of the runs: files other than CSV only if there is one run.
bool is_joined(const std::string& table, std::size_t num_runs);

// True where the tables at the top of the folder are those of these runs, in this order.
bool has_tables_of(const ResultsFolder& folder, const std::vector<std::string>& run_ids);

// A row of the tables at the top of a results folder: a run in a folder of its own, and its value on each axis.
struct ViewRow {
  std::string id;
  std::filesystem::path run;  // its folder
  std::vector<std::string> labels;
};

struct View {
  std::vector<std::string> axes;  // columns between `run` and `seed`
  std::vector<ViewRow> rows;
};

// The complete runs (places in experiment.runs) with the experiment's axes.
View view_of(const ResultsFolder& folder, const Experiment& experiment, const std::vector<std::size_t>& complete);

// Joins the tables of runs at the top of the folder: summary.csv with the axes between `run` and `seed`, and the others as they are. A run
// that several points of the grid share has a row in summary.csv for each of them, and is in the others once. InputError: a run's tables
// have other columns than those before it.
void join_runs(ResultsFolder& folder, const View& view);

}  // namespace kvlab
