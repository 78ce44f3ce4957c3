#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

struct RunTask {
  const Experiment& experiment;
  const RunSpec& run;
  std::filesystem::path runs;
  RunOrigin origin;
  std::function<void()> is_valid;  // called before the run is published; its exception ends the run
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

// Reads and executes a run, and writes runs/ID/.
void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options);

// For a run already read. p: source of the defaults listed in resolved.yaml; null: none.
void execute_prepared(PreparedRun& prepared, const RunTask& task, const RunOptions& options, const Params* p = nullptr);

}  // namespace kvlab
