#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "app/results/view.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

// Column with a row's results folder, in tables over several.
inline constexpr const char* kOriginAxis = "results";

struct FolderView {
  View view;
  std::string remark;  // lines on rows whose run is damaged, gone or elsewhere, or ""
};

// Runs in the tables by 'include_results', from other folders.
std::set<std::string> included_runs(const std::filesystem::path& folder);

// Finished runs of the newest sweep with their labels. Throws InputError if this is not a results folder or has no finished run.
FolderView view_of_folder(const std::filesystem::path& folder);

// "1 run is", "2 runs are".
std::string runs_are(std::size_t count, const std::string& of = "");

// Joins rows of several folders; axes are kOriginAxis, then those of all. A missing axis is filled from the run's resolved.yaml, else "".
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

// Throws InputError, with the place and a command to type, if an included folder is missing or is `own`.
void require_included(const Experiment& experiment, const std::filesystem::path& own);

// Adds included runs to `view`. Returns a remark on duplicates.
std::string include_results(const Experiment& experiment, View& view);

}  // namespace kvlab
