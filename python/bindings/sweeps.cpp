#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <sstream>

#include "app/compare/compare.h"
#include "app/runs/seeds.h"
#include "app/runs/stop_signals.h"
#include "app/runs/sweep.h"
#include "bindings/bindings.h"
#include "bindings/policies/policy_use.h"
#include "bindings/policies/python_policy.h"

namespace kvlab {

namespace nb = nanobind;

namespace {

// One call of kvlab.run().
struct PythonSweep {
  std::string file, shard;
  std::vector<std::string> set;
  SweepOptions options;
};

// Result of one call: the exit status of `kvlab run --quiet`, its lines on stderr and remarks on seeds, and the results folder.
struct PythonOutcome {
  int status = 0;
  std::string folder, err;
};

// A listener for the sweep's thread. An exception of the callable is printed and does not end the sweep.
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

PythonOutcome run_released(PythonSweep sweep) {
  const nb::gil_scoped_release released;
  stop_requested() = false;  // an earlier call may have been interrupted
  if (!sweep.shard.empty()) sweep.options.shard = parse_shard(sweep.shard);
  Experiment experiment = load_experiment(sweep.file, sweep.set);
  std::ostringstream out, err;
  err << drop_idle_seeds(experiment);  // the remark, a line
  const std::filesystem::path whole = results_folder(experiment, sweep.options.out);
  PythonOutcome outcome;
  outcome.folder = (sweep.options.shard ? shard_folder(whole, *sweep.options.shard) : whole).string();
  outcome.status = run_sweep(std::move(experiment), sweep.options, out, err);
  outcome.err = err.str();
  return outcome;
}

nb::tuple run_experiment_file(const std::string& file, const std::vector<std::string>& set, const std::string& out, int jobs, bool force,
                              bool join, const std::string& shard, bool fast_forward, const nb::object& progress,
                              const nb::dict& tracebacks) {
  PythonSweep sweep;
  sweep.file = file, sweep.shard = shard, sweep.set = set;
  sweep.options.out = out, sweep.options.jobs = jobs, sweep.options.force = force, sweep.options.join = join;
  sweep.options.fast_forward = fast_forward;
  sweep.options.quiet = true;
  sweep.options.names_results = false;  // that is for the front door
  sweep.options.on_progress = listener_of(progress);
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
  m.def("run", &run_experiment_file, nb::arg("file"), nb::arg("set"), nb::arg("out"), nb::arg("jobs"), nb::arg("force"), nb::arg("join"),
        nb::arg("shard"), nb::arg("fast_forward"), nb::arg("progress").none(), nb::arg("tracebacks"),
        "`kvlab run --quiet`. Returns (exit status, results folder, stderr). progress: None, or called with (runs done, runs, requests, "
        "seconds) from another thread. tracebacks: gets those of exceptions in policies, by the first line of the message.");
  m.def("compared", &compared_rows, nb::arg("folder_a"), nb::arg("folder_b"), nb::arg("every"),
        "Rows (configuration, metric, pairs, mean of A, mean of B, mean of B - A, half width of its 95 % interval or None).");
}

}  // namespace kvlab
