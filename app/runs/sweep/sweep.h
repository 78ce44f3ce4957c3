#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/sweep/chosen_runs.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/progress.h"

namespace kvlab {

struct SweepOptions {
  int jobs = 0;                               // concurrent runs; 0: number of cores
  std::string out;                            // "": results/NAME
  bool join = false;                          // `out` may belong to another experiment
  std::optional<Shard> shard;                 // only these runs, into shard_folder()
  std::vector<std::filesystem::path> shards;  // copy their complete runs and execute none
  bool fast_forward = true;
  bool quiet = false;
  bool force = false;         // repeat runs with unchanged inputs
  bool names_results = true;  // for the front door's figures
  bool writes_file = false;   // write the text to `file`, which does not exist, once the folder is locked
  bool shows_progress = false;
  ProgressListener on_progress;                                  // called from its own thread
  std::function<void(const std::filesystem::path&)> on_written;  // with the complete, still locked folder
};

std::filesystem::path results_folder(const Experiment& experiment, const std::string& out);

// Drops seeds that change nothing (seeds.h). Returns 0; 1 or 2 if runs failed (2: all by user errors); 1 if shards lack runs; 3 if a limit
// of 'expect' is violated; 130 after Ctrl-C.
int run_sweep(Experiment experiment, const SweepOptions& options, std::ostream& out, std::ostream& err);

}  // namespace kvlab
