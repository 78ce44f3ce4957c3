#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/runs/input_files.h"
#include "app/runs/run_kind.h"
#include "app/runs/sweep.h"

namespace kvlab {

// Facts on all runs, found before the first starts.
struct SweepPlan {
  std::vector<RunKind*> kinds;     // of each run
  std::vector<CodeVersion> codes;  // of each run
  std::vector<bool> are_random;    // of each run: another seed may give another result; true where it has one seed alone
  std::set<std::string> tables;    // that the sweep will write
  Comparisons comparisons;
};

// Leaves these runs alone, in the experiment and in its plan. Places ascend.
void keep_runs(const std::vector<std::size_t>& places, Experiment& experiment, SweepPlan& plan);

// Reads and refuses everything that can be wrong with any run, before the first starts. Runs that differ in their seed alone are checked
// once.
SweepPlan check_all(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, InputFiles& inputs, std::ostream& err);

}  // namespace kvlab
