#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "app/runs/experiment.h"
#include "app/runs/progress.h"
#include "app/runs/shard.h"

namespace kvlab {

struct SweepOptions {
  int jobs = 0;                               // runs at a time; 0: the machine's number of cores
  std::string out;                            // results folder; "": results/NAME
  bool join = false;                          // `out` may belong to another experiment
  std::optional<Shard> shard;                 // only these runs, into a folder of their own beside the results folder
  std::vector<std::filesystem::path> shards;  // their complete runs are copied into the results folder, and no run is done
  bool fast_forward = true;
  bool quiet = false;            // errors and nothing else
  bool force = false;            // do runs again whose inputs have not changed
  bool names_results = true;     // for the front door, which draws their figures
  bool shows_progress = false;   // a bar that rewrites its line: only for terminals
  ProgressListener on_progress;  // is told how far the sweep is, from a thread of its own
};

// `out`, or where it is "" results/NAME.
std::filesystem::path results_folder(const Experiment& experiment, const std::string& out);

// Checks every run of an experiment, does those that are not in the results folder yet, and joins their tables at its top. Each
// configuration is read once before the first run; seeds that change nothing are left out (seeds.h). Returns the exit status: 0; 1 or 2
// when runs failed (2: all of them by something the user can mend); 1 where shards lack runs; 130 after Ctrl-C.
int run_sweep(Experiment experiment, const SweepOptions& options, std::ostream& out, std::ostream& err);

}  // namespace kvlab
