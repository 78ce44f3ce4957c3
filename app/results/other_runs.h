#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "app/results/view.h"
#include "app/runs/experiment.h"

namespace kvlab {

// The column that names the results folder of each row, where tables have rows of several.
inline constexpr const char* kOriginAxis = "results";

struct FolderView {
  View view;
  std::string remark;  // lines on rows whose run is damaged or gone, or of another results folder; "" if there are none
};

// Runs of other results folders that the tables of this one have by 'include_results'. Their files are in those folders.
std::set<std::string> included_runs(const std::filesystem::path& folder);

// The finished runs of the newest sweep of a results folder, each row with its labels. InputError: it is none, or holds no finished run.
FolderView view_of_folder(const std::filesystem::path& folder);

// "1 run is", "2 runs are".
std::string runs_are(std::size_t count, const std::string& of = "");

// Puts rows of several folders in one view: axes are those of all, and first kOriginAxis. A row whose folder does not have an axis gets the
// value at this path in the run's resolved.yaml, "" where it is none.
class ViewUnion {
 public:
  // Rows of `view` whose run is there already are left out. Returns their number.
  std::size_t add(const View& view, const std::string& origin);
  [[nodiscard]] View view() const;

 private:
  struct Part {
    View view;
    std::string origin;
  };
  std::vector<Part> parts_;
};

// InputError with the place in the file and the command to type: a folder that 'include_results' names is not there, or is `own`.
void require_included(const Experiment& experiment, const std::filesystem::path& own);

// Adds the runs that the experiment includes to the view of its own. Returns a remark on runs that were in it already.
std::string include_results(const Experiment& experiment, View& view);

}  // namespace kvlab
