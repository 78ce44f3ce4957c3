#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "app/runs/experiment.h"
#include "app/runs/run_kind.h"

namespace kvlab {

// A run with its place in the results.
struct RunTask {
  const Experiment& experiment;
  const RunSpec& run;
  std::filesystem::path runs;  // the folder of all runs
  RunOrigin origin;
  std::function<void()> is_valid;  // called before the run takes its place there; an exception from it ends the run
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

// Reads and does one run, and writes runs/ID/.
void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options);

// The same for a run that is read already. p: its parameters, whose defaults are listed in resolved.yaml; null: none are.
void execute_prepared(PreparedRun& prepared, const RunTask& task, const RunOptions& options, const Params* p = nullptr);

}  // namespace kvlab
