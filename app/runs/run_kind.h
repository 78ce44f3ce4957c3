#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/runs/experiment.h"
#include "app/runs/summary_row.h"
#include "base/params.h"
#include "base/registry.h"
#include "traces/trace.h"

namespace kvlab {

class InputFiles;
class ResultsFolder;
class RunFiles;
class RunKind;
struct SweepReport;

// Thrown inside a run when the user asked to stop.
struct Interrupted {};

struct RunOptions {
  bool fast_forward = true;
  const std::atomic<bool>* stop = nullptr;              // set: the run ends with Interrupted
  std::atomic<std::uint64_t>* requests_done = nullptr;  // counts finished requests, for the progress bar
  std::function<void(const std::string&)> say = {};     // prints a line on a run that takes long; empty: silent
  bool says_progress = false;                           // such lines also while it runs

  void check_stop() const {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Interrupted{};
  }
};

// The part of a run's manifest that says how its result came about.
struct RunOrigin {
  std::string input_key;  // fingerprint of everything that the result depends on, the code included
  CodeVersion code;
  std::map<std::string, std::string> inputs;  // "key: path as written" -> fingerprint
};

// The result of a run beside the tables that it wrote itself.
struct Findings {
  std::vector<Fields> rows;                                            // of summary.csv
  nlohmann::ordered_json manifest = nlohmann::ordered_json::object();  // entries of this kind of run
  std::string note, skipped, not_served;                               // remarks for the reader
  std::optional<double> wall_s;                                        // of a run that shared its work; none: of the whole call

  void add_note(const std::string& text) { note += (note.empty() || text.empty() ? "" : "; ") + text; }
};

// Comparisons that an experiment asks for, made after its sweep.
struct Comparisons {
  std::string requests;      // a real engine's log to compare the results with, or ""
  double max_diff_frac = 0;  // that simulation and engine may differ by in a median over the seeds; 0: any
};

// One run of an experiment, read and checked: nothing is left that the user could have got wrong except inside its input files.
class PreparedRun {
 public:
  explicit PreparedRun(RunKind& kind) : kind_(kind) {}
  virtual ~PreparedRun() = default;

  [[nodiscard]] RunKind& kind() const { return kind_; }
  // Those tables of its kind that this run writes.
  [[nodiscard]] std::set<std::string> tables() const;
  // Its requests.csv has the time of the KV policy's work.
  [[nodiscard]] virtual bool times_policy() const { return false; }
  // Writes its tables to `files`. InputError on anything wrong with its input; Interrupted.
  virtual Findings run(RunFiles& files, const RunOptions& options) = 0;
  // The message when memory ran out, with the keys that decide how much a run takes.
  [[nodiscard]] virtual std::string out_of_memory() const { return "out of memory"; }
  // The requests of a seed, if nothing else of the run depends on it; null: other parts do, or only the run can tell.
  [[nodiscard]] virtual std::unique_ptr<TraceSource> only_draws(std::uint64_t /*seed*/) const { return nullptr; }
  [[nodiscard]] virtual Comparisons comparisons() const { return {}; }

 private:
  [[nodiscard]] virtual bool writes(const std::string& /*table*/) const { return true; }
  RunKind& kind_;
};

// Runs of one sweep that are done together.
struct RunBatch {
  const Experiment& experiment;
  const InputFiles& inputs;
  const ResultsFolder& folder;
  const std::atomic<bool>& stop;
  std::ostream* log;  // null: quiet
  std::function<RunOrigin(std::size_t place)> origin_of;
  // To be called once per place, with the error that ended the run, if any, and the seconds that were its own.
  std::function<void(std::size_t place, const std::exception_ptr& error, double wall_s)> finish;
  std::vector<std::size_t> places = {};  // in Experiment::runs
};

// A kind of run, such as a simulation or a replay. An object serves one sweep and holds what runs of the sweep share. read() and the runs
// that it prepares are used by several threads, unless the kind does its runs together.
class RunKind {
 public:
  explicit RunKind(Params& /*none*/) {}
  virtual ~RunKind() = default;

  // Reads the rest of an experiment's top level after read_kind() and refuses keys that it does not know. Policies, cost models and traces
  // are made once, so that their errors appear here. InputError with file:line:column.
  virtual std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) = 0;
  // Files that a run may write beside summary.csv, manifest.json and resolved.yaml. The sweep joins CSV files of all runs.
  [[nodiscard]] virtual std::set<std::string> tables() const = 0;
  // True if a run executes a model on this machine: no other run is done at the same time, and each seed is run.
  [[nodiscard]] virtual bool runs_engine() const { return false; }
  // Does runs that share work. False: they share none, and the sweep does them one by one, some at a time.
  virtual bool run_together(const RunBatch& /*batch*/) { return false; }
  // Prints the summary at the end of `kvlab run`: a table with metrics(), and the remarks of the runs.
  virtual void report(const SweepReport& report, std::ostream& out) const;

 private:
  // Columns of summary.csv that are printed.
  [[nodiscard]] virtual std::vector<std::string> metrics() const { return {}; }
};

// A flag below 'output' that only 'host: replay' has.
inline constexpr const char* kKeptKey = "kept";

// For kinds that schedule no requests. InputError: the experiment has 'order' or 'predictor'.
void refuse_orders(const Params& p);

// The kinds of run that a sweep needs. Each is made once.
class RunKinds {
 public:
  // The kind that an experiment chooses. Reads the keys that all kinds have.
  RunKind& choose(Params& p);
  // Reads a run of that kind.
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) { return choose(p).read(p, seed); }

 private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<RunKind>> made_;
};

// Reads the keys that all kinds have: name, seed, seeds, and `kind` and `host`, which choose one. Returns its name in the registry.
std::string read_kind(Params& p);

// Refuses an unknown name of a policy at the place where the file names it.
template <class Registry>
void require_known(const Params& p, const std::string& key, const std::string& name, const std::string& kind) {
  if (!Registry::table_view().contains(name)) p.fail_at(key, "unknown " + kind + " '" + name + "'" + suggestion(name, Registry::names()));
}

// The tables of all kinds.
const std::set<std::string>& all_run_tables();

}  // namespace kvlab
