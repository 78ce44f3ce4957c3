#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

struct RunTask {
  const Experiment& experiment;
  const RunSpec& run;
  std::filesystem::path runs;
  RunOrigin origin;
  std::function<void()> is_valid;  // called before publishing; may throw
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options);

// p: source of the defaults in resolved.yaml; null: none.
void execute_prepared(PreparedRun& prepared, const RunTask& task, const RunOptions& options, const Params* p = nullptr);

}  // namespace kvlab
