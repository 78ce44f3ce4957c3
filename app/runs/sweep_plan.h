#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/runs/graded_runs.h"
#include "app/runs/input_files.h"
#include "app/runs/setup.h"
#include "app/runs/sweep.h"

namespace kvlab {

// Facts that the plans of all runs share, or that are needed at the end.
struct SweepPlan {
  std::string validate_requests;
  double max_diff_frac = 0;
  std::vector<RunKind> kinds;      // of each run
  std::vector<CodeVersion> codes;  // of each run
  std::set<std::string> tables;    // that the sweep will write
  SampleSets samples;
};

// Reads and refuses everything that can be wrong with any run, before the first starts. Runs that differ in their seed alone are checked
// once.
SweepPlan check_all(const Experiment& experiment, const SweepOptions& options, InputFiles& inputs);

}  // namespace kvlab
