#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

std::string axis_column(const std::string& path);

// CSV files; others only for a single run.
bool is_joined(const std::string& table, std::size_t num_runs);

// True if the top-level tables are of these runs, in this order.
bool has_tables_of(const ResultsFolder& folder, const std::vector<std::string>& run_ids);

struct ViewRow {
  std::string id;
  std::filesystem::path run;
  std::vector<std::string> labels;
};

struct View {
  std::vector<std::string> axes;  // between `run` and `seed`
  std::vector<ViewRow> rows;
};

// complete: indices into experiment.runs.
View view_of(const ResultsFolder& folder, const Experiment& experiment, const std::vector<std::size_t>& complete);

// Joins the runs' tables at the top; summary.csv gets the axes. Throws InputError if columns differ.
void join_runs(ResultsFolder& folder, const View& view);

}  // namespace kvlab
