#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
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
#include "app/results/run_files.h"
#include "app/runs/report/summary_row.h"
#include "app/runs/sweep/experiment.h"
#include "base/config/params.h"
#include "base/config/registry.h"
#include "policies/kv/recipe/recipe.h"
#include "traces/trace.h"

namespace kvlab {

class InputFiles;
class ResultsFolder;
class RunKind;
struct SweepReport;

struct Interrupted {};

struct RunOptions {
  bool fast_forward = true;
  const std::atomic<bool>* stop = nullptr;              // set: the run throws Interrupted
  std::atomic<std::uint64_t>* requests_done = nullptr;  // finished
  std::function<void(const std::string&)> say = {};     // on long runs; empty: silent
  bool says_progress = false;

  void check_stop() const {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Interrupted{};
  }
};

struct RunOrigin {
  std::string input_key;  // of all inputs and code
  CodeVersion code;
  std::map<std::string, std::string> inputs;  // "key: path" -> fingerprint
};

struct Findings {
  std::vector<Fields> rows;                                            // of summary.csv
  nlohmann::ordered_json manifest = nlohmann::ordered_json::object();  // entries of this kind
  std::vector<std::string> notes;
  std::string skipped, not_served;
  std::optional<double> wall_s;  // of a run with shared work; nullopt: measured around run()

  void add_note(const std::string& text) {
    if (!text.empty()) notes.push_back(text);
  }
};

// Made after the sweep.
struct Comparisons {
  std::string requests;      // a real engine's log, or ""
  double max_diff_frac = 0;  // limit of medians over seeds, simulation against engine; 0: none
};

// Only input files may still be wrong.
class PreparedRun {
 public:
  explicit PreparedRun(RunKind& kind) : kind_(kind) {}
  virtual ~PreparedRun() = default;

  [[nodiscard]] RunKind& kind() const { return kind_; }
  // A subset of the kind's.
  [[nodiscard]] std::set<std::string> tables() const;
  // True if requests.csv has the KV policy's time.
  [[nodiscard]] virtual bool times_policy() const { return false; }
  // Throws InputError on bad input; Interrupted.
  virtual Findings run(RunFiles& files, const RunOptions& options) = 0;
  // Message on bad_alloc, with the keys that determine memory.
  [[nodiscard]] virtual std::string out_of_memory() const { return "out of memory"; }
  // A seed's requests if nothing else depends on it, else null.
  [[nodiscard]] virtual std::unique_ptr<TraceSource> only_draws(std::uint64_t /*seed*/) const { return nullptr; }
  [[nodiscard]] virtual Comparisons comparisons() const { return {}; }

 private:
  [[nodiscard]] virtual bool writes(const std::string& /*table*/) const { return true; }
  RunKind& kind_;
};

struct RunBatch {
  const Experiment& experiment;
  const InputFiles& inputs;
  const ResultsFolder& folder;
  const std::atomic<bool>& stop;
  std::ostream* log;  // null: quiet
  std::function<RunOrigin(std::size_t place)> origin_of;
  // Call once per place; wall_s: the run's own.
  std::function<void(std::size_t place, const std::exception_ptr& error, double wall_s)> finish;
  std::vector<std::size_t> places = {};  // in Experiment::runs
};

// One object serves a sweep and holds shared state. read() and runs must be thread-safe unless run_together() handles them.
class RunKind {
 public:
  explicit RunKind(Params& /*none*/) {}
  virtual ~RunKind() = default;

  // Reads the keys left by read_kind() and refuses unknown ones. Finds errors of policies, cost models and traces. Throws InputError.
  virtual std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) = 0;
  // Besides summary.csv, manifest.json and resolved.yaml. CSV files are joined.
  [[nodiscard]] virtual std::set<std::string> tables() const = 0;
  // Runs are then not concurrent, and no seed is skipped.
  [[nodiscard]] virtual bool runs_engine() const { return false; }
  // For runs that share work. False: the sweep executes each.
  virtual bool run_together(const RunBatch& /*batch*/) { return false; }
  virtual void report(const SweepReport& report, std::ostream& out) const;

 private:
  // Columns of summary.csv.
  [[nodiscard]] virtual std::vector<std::string> metrics() const { return {}; }
};

// In 'output', only for 'host: replay'.
inline constexpr const char* kKeptKey = "kept";
inline constexpr const char* kKeptStepsKey = "kept_steps";

// Throws InputError if 'order' or 'predictor' is present.
void refuse_orders(const Params& p);

class RunKinds {
 public:
  RunKind& choose(Params& p);
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t seed) { return choose(p).read(p, seed); }

 private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<RunKind>> made_;
};

// Reads the common keys (name, seed, seeds, kind, host). Returns the name in the registry.
std::string read_kind(Params& p);

template <class Registry>
void require_known(const Params& p, const std::string& key, const std::string& name, const std::string& kind) {
  if (!Registry::table_view().contains(name)) p.fail_at(key, "unknown " + kind + " '" + name + "'" + suggestion(name, Registry::names()));
}

// Over all kinds.
const std::set<std::string>& all_run_tables();

// Replays the KV policy on `samples`. Cached by recipe, samples, kv_bytes and seed. Throws InputError.
Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed);

// Group in tables and figures: by how tokens are chosen, else by what is done to them.
std::string family_of(const Recipe& recipe);

struct RunTask {
  const Experiment& experiment;
  const RunSpec& run;
  std::filesystem::path runs;
  RunOrigin origin;
  std::function<void()> is_valid;  // called before publishing; may throw
  std::function<void(FreshRun run)> publish = publish_at_once;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options);

// p: source of the defaults in resolved.yaml; null: none.
void execute_prepared(PreparedRun& prepared, const RunTask& task, const RunOptions& options, const Params* p = nullptr);

}  // namespace kvlab
