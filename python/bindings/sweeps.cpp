#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "app/compare/compare.h"
#include "app/results/results.h"
#include "app/results/safe_files.h"
#include "app/runs/sweep/chosen_runs.h"
#include "app/runs/sweep/progress.h"
#include "app/runs/sweep/sweep.h"
#include "bindings/bindings.h"
#include "bindings/policies/python_policy.h"

namespace kvlab {

namespace nb = nanobind;

namespace {

// One call of kvlab.run().
struct PythonSweep {
  std::string file, text, shard;  // text: of an experiment given as a mapping
  std::vector<std::string> set;
  SweepOptions options;
};

// From `kvlab run --quiet`; err: with remarks on seeds.
struct PythonOutcome {
  int status = 0;
  std::string folder, err;
};

// Called on the sweep's thread. Exceptions are printed.
ProgressListener listener_of(const nb::object& callable) {
  if (callable.is_none()) return {};
  return [&callable](const SweepProgress& at) {
    const nb::gil_scoped_acquire held;
    try {
      callable(at.runs_done, at.num_runs, at.requests, at.passed_s);
    } catch (nb::python_error& e) {
      e.discard_as_unraisable("the progress callback of kvlab.run()");
    }
  };
}

// Calls `taken` with the locked results folder. Exceptions are printed.
std::function<void(const std::filesystem::path&)> taker_of(const nb::object& taken) {
  return [&taken](const std::filesystem::path& folder) {
    const nb::gil_scoped_acquire held;
    try {
      taken(folder.string());
    } catch (nb::python_error& e) {
      e.discard_as_unraisable("kvlab.run()");
    }
  };
}

// The message refers to this file. Skipped if another kvlab uses the folder.
void write_refused(const PythonSweep& sweep) {
  const std::filesystem::path file = std::filesystem::absolute(sweep.file);  // a bare name has no folder
  if (sweep.text.empty() || is_locked(file.parent_path() / file.stem())) return;
  std::error_code unmade;  // replace_file() reports it
  std::filesystem::create_directories(file.parent_path(), unmade);
  replace_file(file, sweep.text);
}

PythonOutcome run_loaded(PythonSweep sweep) {
  if (!sweep.shard.empty()) sweep.options.shard = parse_shard(sweep.shard);
  sweep.options.writes_file = !sweep.text.empty();
  Experiment experiment = sweep.text.empty() ? load_experiment(sweep.file, sweep.set) : parse_experiment(sweep.text, sweep.file, sweep.set);
  std::ostringstream out, err;
  err << drop_idle_seeds(experiment);  // one line
  const std::filesystem::path whole = results_folder(experiment, sweep.options.out);
  PythonOutcome outcome;
  outcome.folder = (sweep.options.shard ? shard_folder(whole, *sweep.options.shard) : whole).string();
  outcome.status = run_sweep(std::move(experiment), sweep.options, out, err);
  outcome.err = err.str();
  return outcome;
}

PythonOutcome run_released(PythonSweep sweep) {
  const nb::gil_scoped_release released;
  stop_requested() = false;  // from an interrupted call
  try {
    return run_loaded(sweep);
  } catch (const InputError&) {
    write_refused(sweep);
    throw;
  }
}

nb::tuple run_experiment_file(const std::string& file, const std::string& text, const std::vector<std::string>& set, const std::string& out,
                              int jobs, bool force, bool join, const std::string& shard, bool fast_forward, const nb::object& progress,
                              const nb::dict& tracebacks, const nb::object& taken) {
  PythonSweep sweep;
  sweep.file = file, sweep.text = text, sweep.shard = shard, sweep.set = set;
  sweep.options.out = out, sweep.options.jobs = jobs, sweep.options.force = force, sweep.options.join = join;
  sweep.options.fast_forward = fast_forward;
  sweep.options.quiet = true;
  sweep.options.names_results = false;  // only for the command line
  sweep.options.on_progress = listener_of(progress);
  sweep.options.on_written = taker_of(taken);
  const TracebackListener listener(tracebacks);
  const PolicyUse use;
  const PythonOutcome outcome = run_released(std::move(sweep));
  return nb::make_tuple(outcome.status, outcome.folder, outcome.err);
}

nb::list compared_rows(const std::string& folder_a, const std::string& folder_b, bool every) {
  std::vector<ComparedMetric> found;
  {
    const nb::gil_scoped_release released;
    found = compared_metrics(folder_a, folder_b, every);
  }
  nb::list rows;
  for (const ComparedMetric& c : found) {
    const PairedDifference& d = c.difference;
    const bool has_interval = std::isfinite(d.half_width) && d.half_width > 0;
    rows.append(nb::make_tuple(c.configuration, c.metric, d.num_pairs, d.mean_a, d.mean_b, d.mean,
                               has_interval ? nb::cast(d.half_width) : nb::none()));
  }
  return rows;
}

}  // namespace

void bind_sweeps(nb::module_& m) {
  m.def("run", &run_experiment_file, nb::arg("file"), nb::arg("text"), nb::arg("set"), nb::arg("out"), nb::arg("jobs"), nb::arg("force"),
        nb::arg("join"), nb::arg("shard"), nb::arg("fast_forward"), nb::arg("progress").none(), nb::arg("tracebacks"), nb::arg("taken"),
        "`kvlab run --quiet`. Returns (exit status, results folder, stderr). text: of an experiment without a file, which is written to it "
        "once the results folder is locked; else \"\". taken: called with the results folder while it is locked. progress: None, or called "
        "with (runs done, runs, requests, "
        "seconds) from another thread. tracebacks: gets those of exceptions in policies, by the first line of the message.");
  m.def("compared", &compared_rows, nb::arg("folder_a"), nb::arg("folder_b"), nb::arg("every"),
        "Rows (configuration, metric, pairs, mean of A, mean of B, mean of B - A, half width of its 95 % interval or None).");
}

}  // namespace kvlab
