#include "app/sweep.h"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <ostream>
#include <thread>

#include "app/graded_runs.h"
#include "app/host_pairs.h"
#include "app/progress.h"
#include "app/real_log.h"
#include "app/report.h"
#include "app/results.h"
#include "app/run.h"
#include "app/setup.h"
#include "app/stop_signals.h"
#include "app/text_file.h"
#include "app/validate.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// What the plans of all runs have in common, or ask for at the end.
struct SweepPlan {
  std::string validate_requests;
  double max_diff_frac = 0;
  std::vector<RunKind> kinds;  // of each run
  SampleSets samples;
};

// Everything that can be wrong with any run, before the first starts. Runs that differ in their seed alone are checked once.
SweepPlan check_all(const Experiment& experiment) {
  SweepPlan all;
  const Choices* last = nullptr;
  for (const RunSpec& run : experiment.runs) {
    if (last == run.choices.get()) {
      all.kinds.push_back(all.kinds.back());
      continue;
    }
    last = run.choices.get();
    Params p(experiment.config, run.choices, "the experiment");
    const RunPlan plan = read_run_plan(p, run.seed);
    all.kinds.push_back(plan.kind);
    if (plan.accuracy && !all.samples.contains(plan.accuracy->text)) all.samples[plan.accuracy->text] = read_samples(*plan.accuracy);
    all.validate_requests = plan.validate_requests;
    all.max_diff_frac = plan.max_diff_frac;
    if (!all.validate_requests.empty()) read_real_log(all.validate_requests);
  }
  return all;
}

class Sweep {
 public:
  Sweep(const Experiment& experiment, const SweepOptions& options, ResultsFolder& folder, std::ostream& out, std::ostream& err)
      : experiment_(experiment), options_(options), folder_(folder), out_(out), err_(err), states_(experiment.runs.size()) {}

  void find_finished();
  void run_all(const SweepPlan& plan);
  [[nodiscard]] int status() const;
  void report_stop(std::size_t complete) const;
  [[nodiscard]] const std::vector<RunState>& states() const { return states_; }
  [[nodiscard]] const InputFiles& inputs() const { return inputs_; }

 private:
  void grade_all(const SweepPlan& plan);
  void run_one(std::size_t i);
  [[nodiscard]] static RunState state_of(const std::exception_ptr& error);
  void finish(std::size_t i, RunState state);

  const Experiment& experiment_;
  const SweepOptions& options_;
  ResultsFolder& folder_;
  std::ostream &out_, &err_;
  std::vector<RunState> states_;
  std::vector<std::string> keys_;
  InputFiles inputs_;
  std::vector<std::size_t> todo_;
  std::unique_ptr<Progress> progress_;
  std::mutex report_;
};

void Sweep::find_finished() {
  for (std::size_t i = 0; i < experiment_.runs.size(); ++i) {
    keys_.push_back(input_key(experiment_, experiment_.runs[i], options_.fast_forward ? "" : "step by step", inputs_));
    const bool is_done = !options_.force && folder_.key_of(experiment_.runs[i].id) == keys_.back();
    if (is_done)
      states_[i].outcome = RunState::kUnchanged;
    else
      todo_.push_back(i);
  }
}

// Runs that grade answers share the model's work and go first, together.
void Sweep::grade_all(const SweepPlan& plan) {
  std::vector<GradedRuns::Job> jobs;
  std::vector<std::size_t> others;
  for (const std::size_t i : todo_) {
    if (plan.kinds[i] == RunKind::kAccuracy)
      jobs.push_back({i, keys_[i]});
    else
      others.push_back(i);
  }
  const auto done = [this](std::size_t i, const std::exception_ptr& error, double wall_s) {
    RunState state = state_of(error);
    state.wall_s = wall_s;
    finish(i, std::move(state));
  };
  GradedRuns(experiment_, plan.samples, folder_, stop_requested(), done).run(jobs, options_.quiet ? nullptr : &out_);
  todo_ = std::move(others);
}

void Sweep::run_all(const SweepPlan& plan) {
  if (todo_.empty()) return;
  progress_ = std::make_unique<Progress>(err_, todo_.size(), options_.shows_progress && !options_.quiet);
  grade_all(plan);
  if (todo_.empty()) return progress_.reset();
  const auto cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Where a run measures time, nothing runs beside it.
  const bool measures = std::find(plan.kinds.begin(), plan.kinds.end(), RunKind::kServing) != plan.kinds.end();
  const int wanted = measures ? 1 : options_.jobs > 0 ? options_.jobs : cores;
  const int jobs = std::min(wanted, static_cast<int>(todo_.size()));
  std::atomic<std::size_t> next{0};  // in grid order, so that what is there after an interruption is the front of the grid
  const auto work = [&](int) {
    for (std::size_t k = next++; k < todo_.size() && !stop_requested(); k = next++) run_one(todo_[k]);
  };
  if (jobs == 1) {
    work(0);
  } else {
    // A limit of its own, since by default oneTBB has no more threads than the machine has cores.
    const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(jobs));
    tbb::task_arena arena(jobs, 1);
    arena.execute([&] { tbb::parallel_for(0, jobs, 1, work); });
  }
  progress_.reset();
}

RunState Sweep::state_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Interrupted&) {
    return {RunState::kNotRun, "", 0};
  } catch (const InputError& e) {
    return {RunState::kBadInput, e.what(), 0};
  } catch (const std::exception& e) {
    return {RunState::kFailed, e.what(), 0};
  }
  return {RunState::kDone, "", 0};
}

void Sweep::run_one(std::size_t i) {
  const auto began = std::chrono::steady_clock::now();
  std::exception_ptr error;
  try {
    execute_run(experiment_, experiment_.runs[i], folder_.runs(), keys_[i],
                {options_.fast_forward, &stop_requested(), &progress_->requests()});
  } catch (...) {
    error = std::current_exception();
  }
  RunState state = state_of(error);
  state.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  finish(i, std::move(state));
}

void Sweep::finish(std::size_t i, RunState state) {
  const std::lock_guard lock(report_);
  if (state.outcome == RunState::kBadInput || state.outcome == RunState::kFailed) {
    progress_->clear_line();
    err_ << fmt::format("kvlab: run {} ({}) failed: {}\n", experiment_.runs[i].id, run_title(experiment_, experiment_.runs[i]),
                        state.message);
  } else if (state.outcome == RunState::kDone && !options_.quiet && !options_.shows_progress && experiment_.runs.size() > 1) {
    out_ << fmt::format("run {} of {}: {} ({:.2f} s)\n", experiment_.runs[i].id, experiment_.runs.size(),
                        run_title(experiment_, experiment_.runs[i]), state.wall_s)
         << std::flush;
  }
  if (state.outcome == RunState::kDone) folder_.remove_comparisons();  // what they are of is gone
  progress_->run_done();
  states_[i] = std::move(state);
}

int Sweep::status() const {
  if (stop_requested()) return 130;
  const auto count = [&](RunState::Outcome o) {
    return std::count_if(states_.begin(), states_.end(), [&](const RunState& s) { return s.outcome == o; });
  };
  if (count(RunState::kFailed) > 0) return 1;
  return count(RunState::kBadInput) > 0 ? 2 : 0;
}

// On one line, what Ctrl-C left. Of a sweep with --force the same command would do all runs again.
void Sweep::report_stop(std::size_t complete) const {
  const std::string place = folder_.path().string();
  const bool has_answers = std::any_of(keys_.begin(), keys_.end(), [&](const auto& key) { return fs::exists(folder_.partial_of(key)); });
  if (complete > 0)
    err_ << fmt::format("kvlab: stopped; {} of {} runs {} done and kept in {}{}\n", complete, states_.size(), complete == 1 ? "is" : "are",
                        place, options_.force ? "" : ", and the same command does the rest");
  else
    err_ << fmt::format("kvlab: stopped before any of {} runs was done{}\n", states_.size(),
                        has_answers ? fmt::format("; answers are kept in {}, and the same command goes on from them", place) : "");
}

}  // namespace

int run_sweep(const Experiment& experiment, const SweepOptions& options, std::ostream& out, std::ostream& err) {
  const auto began = std::chrono::steady_clock::now();
  const SweepPlan plan = check_all(experiment);
  const StopSignals signals;
  ResultsFolder folder(options.out.empty() ? fs::path("results") / experiment.name : fs::path(options.out));
  Sweep sweep(experiment, options, folder, out, err);
  sweep.find_finished();
  folder.remove_others(experiment);
  sweep.run_all(plan);
  const int status = sweep.status();
  const std::vector<std::string> complete = complete_runs(experiment, sweep.states());
  if (complete.empty()) {
    folder.remove_if_new();
    if (status == 130) sweep.report_stop(0);
    return status;
  }
  if (!folder.has_tables_of(complete)) folder.remove_comparisons();
  folder.join_runs(complete);
  if (complete.size() == experiment.runs.size()) folder.remove_partial();  // others are of runs that this folder does not have any more
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  write_manifest(experiment, sweep.states(), sweep.inputs(), folder, wall.count());
  if (!options.quiet) print_report(experiment, sweep.states(), folder, out);
  if (!plan.validate_requests.empty() && status == 0)
    validate_results(plan.validate_requests, folder.path().string(), options.quiet ? nullptr : &out);
  if (status != 130) {
    name_results(folder.path().string());
    compare_hosts(complete_part(experiment, complete), folder.path().string(), plan.max_diff_frac, options.quiet ? nullptr : &out);
    report_failures(experiment, sweep.states(), err);
  }
  if (!options.quiet) out << "wrote " << folder.path().string() << "\n" << std::flush;
  if (status == 130) sweep.report_stop(complete.size());
  return status;
}

}  // namespace kvlab
