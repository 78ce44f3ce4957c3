#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/results/results.h"
#include "app/results/run_folder.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/report/report.h"
#include "app/runs/sweep/chosen_runs.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/progress.h"
#include "app/runs/sweep/run_publisher.h"

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

struct CheckedRun {
  Params params;
  std::unique_ptr<PreparedRun> run;
};

struct SweepPlan {
  std::vector<RunKind*> kinds;
  std::vector<CodeVersion> codes;
  std::vector<bool> are_random;  // another seed may change the result; true for a single seed
  std::set<std::string> tables;
  Comparisons comparisons;
  std::optional<CheckedRun> only;  // of a sweep with one run, which is executed as it was checked
};

// places: ascending.
void keep_runs(const std::vector<std::size_t>& places, Experiment& experiment, SweepPlan& plan);

// Finds all errors of all runs. Runs that differ only in seed are checked once.
SweepPlan check_all(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, InputFiles& inputs, std::ostream& err);

// In parallel.
class Sweep {
 public:
  Sweep(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, const SweepPlan& plan, const InputFiles& inputs,
        ResultsFolder& folder, std::ostream& out, std::ostream& err)
      : kinds_(kinds),
        experiment_(experiment),
        options_(options),
        plan_(plan),
        inputs_(inputs),
        folder_(folder),
        out_(out),
        err_(err),
        states_(experiment.runs.size()),
        same_as_(experiment.runs.size()) {}

  void find_finished();
  void run_all();
  [[nodiscard]] int status() const;
  void report_stop(std::size_t complete) const;
  void report_missing() const;
  [[nodiscard]] const std::vector<RunState>& states() const { return states_; }
  [[nodiscard]] bool has_new_runs() const;

 private:
  [[nodiscard]] bool merges() const { return !options_.shards.empty(); }
  [[nodiscard]] RunOrigin origin_of(std::size_t i) const;
  [[nodiscard]] bool is_finished(std::size_t i);
  void set_aside(const std::string& id) const;
  void run_batches();
  void run_singly();
  void run_one(std::size_t i);
  [[nodiscard]] std::function<void(const std::string&)> line_printer();
  [[nodiscard]] static RunState state_of(const std::exception_ptr& error, double wall_s);
  void finish(std::size_t i, RunState state);
  void share_outcomes();
  void sync_runs(std::chrono::steady_clock::duration after);

  RunKinds& kinds_;
  const Experiment& experiment_;
  const SweepOptions& options_;
  const SweepPlan& plan_;
  const InputFiles& inputs_;
  ResultsFolder& folder_;
  std::ostream &out_, &err_;
  std::vector<RunState> states_;
  std::vector<std::size_t> same_as_;          // first with the same id
  std::map<std::string, std::size_t> stale_;  // changed code -> runs
  std::vector<std::size_t> todo_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RunPublisher> publisher_;  // null: each run is published at once
  std::mutex report_;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace kvlab
