#pragma once

#include <filesystem>
#include <set>
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

// Column with a row's results folder.
inline constexpr const char* kOriginAxis = "results";

struct FolderView {
  View view;
  std::string remark;  // on rows with a run that is damaged, gone or elsewhere
};

// Runs in the tables by 'include_results'.
std::set<std::string> included_runs(const std::filesystem::path& folder);

// Finished runs of the newest sweep. Throws InputError if there are none or this is not a results folder.
FolderView view_of_folder(const std::filesystem::path& folder);

// "1 run is", "2 runs are".
std::string runs_are(std::size_t count, const std::string& of = "");

// Axes are kOriginAxis, then those of all. A missing axis is filled from the run's resolved.yaml, else "".
class ViewUnion {
 public:
  // Returns the number of rows skipped because their run is present.
  std::size_t add(const View& view, const std::string& origin);
  [[nodiscard]] View view() const;

 private:
  struct Part {
    View view;
    std::string origin;
  };
  std::vector<Part> parts_;
};

// Throws InputError if an included folder is missing or is `own`.
void require_included(const Experiment& experiment, const std::filesystem::path& own);

// Returns a remark on duplicates.
std::string include_results(const Experiment& experiment, View& view);

}  // namespace kvlab
