#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/sweep.h"

namespace kvlab {

struct SweepPlan {
  std::vector<RunKind*> kinds;
  std::vector<CodeVersion> codes;
  std::vector<bool> are_random;  // another seed may change the result; true for a single seed
  std::set<std::string> tables;
  Comparisons comparisons;
};

// places: ascending.
void keep_runs(const std::vector<std::size_t>& places, Experiment& experiment, SweepPlan& plan);

// Finds all errors of all runs. Runs that differ only in seed are checked once.
SweepPlan check_all(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, InputFiles& inputs, std::ostream& err);

}  // namespace kvlab
