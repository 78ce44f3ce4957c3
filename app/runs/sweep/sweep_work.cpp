#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <set>
#include <thread>

#include "app/results/safe_files.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/progress.h"
#include "app/runs/sweep/sweep.h"
#include "base/message.h"

namespace kvlab {

namespace fs = std::filesystem;

RunOrigin Sweep::origin_of(std::size_t i) const {
  RunOrigin origin;
  origin.code = plan_.codes[i];
  std::string key = experiment_.runs[i].id;
  for (const auto& [name, hash] : origin.code) key += " " + name + " " + hash;
  origin.input_key = hex(fingerprint_of_text(key));
  for (const InputFile& file : inputs_.of_run(experiment_.runs[i]))
    if (!file.is_kept) origin.inputs.emplace(file.label, inputs_.all().at(file.path.string()));
  return origin;
}

// Present, undamaged, and by this code.
bool Sweep::is_finished(std::size_t i) {
  const std::string& id = experiment_.runs[i].id;
  const fs::path folder = folder_.runs() / id;
  const PathKind kind = kind_without_link(folder);
  if (kind == PathKind::kNothing) return false;
  const RunManifest manifest = kind == PathKind::kFolder ? read_run_manifest(folder) : RunManifest{};
  if (!manifest.is_ours() || manifest.is_numbered || !manifest.is_finished) {
    set_aside(id);
    return false;
  }
  if (options_.force) return false;
  if (const std::string changed = changed_code(manifest.code, plan_.codes[i]); !changed.empty()) {
    ++stale_[changed];
    return false;
  }
  const std::string damage = damage_of(folder, manifest);
  if (!damage.empty()) err_ << fmt::format("kvlab: run {} is damaged ({}) and is done again\n", folder.string(), damage);
  return damage.empty();
}

// Without a manifest it may not be kvlab's.
void Sweep::set_aside(const std::string& id) const {
  const fs::path folder = folder_.runs() / id;
  for (int n = 1;; ++n) {
    const fs::path aside = folder_.runs() / fmt::format("{}.aside{}", id, n);
    if (kind_of(aside) != PathKind::kNothing) continue;
    fs::rename(folder, aside);
    err_ << fmt::format("kvlab: {} has no manifest of kvlab: it is kept as {}, and the run is done again\n", folder.string(),
                        aside.string());
    return;
  }
}

void Sweep::find_finished() {
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < experiment_.runs.size(); ++i) {
    const auto [known, is_new] = first.emplace(experiment_.runs[i].id, i);
    same_as_[i] = known->second;
    if (!is_new) continue;
    if (is_finished(i))
      states_[i].outcome = RunState::kUnchanged;
    else
      todo_.push_back(i);
  }
  share_outcomes();
  if (merges()) todo_.clear();
  if (options_.quiet || merges()) return;
  for (const auto& [changed, count] : stale_)
    out_ << fmt::format("{} {} done again, since {} changed\n", count, count == 1 ? "run is" : "runs are", changed);
}

// A run of several grid points is executed once.
void Sweep::share_outcomes() {
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (same_as_[i] != i) states_[i] = states_[same_as_[i]];
}

bool Sweep::has_new_runs() const {
  return std::any_of(states_.begin(), states_.end(), [](const RunState& s) { return s.outcome == RunState::kDone; });
}

void Sweep::run_batches() {
  RunBatch batch{experiment_,
                 inputs_,
                 folder_,
                 stop_requested(),
                 options_.quiet ? nullptr : &out_,
                 [this](std::size_t i) { return origin_of(i); },
                 [this](std::size_t i, const std::exception_ptr& error, double wall_s) {
                   finish(i, state_of(error, wall_s));
                   sync_runs(std::chrono::seconds(1));
                 }};
  std::set<RunKind*> asked, together;
  for (const std::size_t i : todo_) {
    RunKind* const kind = plan_.kinds[i];
    if (!asked.insert(kind).second) continue;
    batch.places.clear();
    std::copy_if(todo_.begin(), todo_.end(), std::back_inserter(batch.places), [&](std::size_t k) { return plan_.kinds[k] == kind; });
    if (kind->run_together(batch)) together.insert(kind);
  }
  std::erase_if(todo_, [&](std::size_t i) { return together.contains(plan_.kinds[i]); });
}

void Sweep::run_all() {
  if (todo_.empty()) return;
  progress_ = std::make_unique<Progress>(err_, todo_.size(), options_.shows_progress && !options_.quiet, options_.on_progress);
  run_batches();
  if (!todo_.empty()) run_singly();
  share_outcomes();
  sync_runs({});
  progress_.reset();
}

void Sweep::run_singly() {
  const auto cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Runs that measure time are not concurrent.
  const bool measures = std::any_of(plan_.kinds.begin(), plan_.kinds.end(), [](const RunKind* kind) { return kind->runs_engine(); });
  const int wanted = measures ? 1 : options_.jobs > 0 ? options_.jobs : cores;
  const int jobs = std::min(wanted, static_cast<int>(todo_.size()));
  std::atomic<std::size_t> next{0};  // grid order, so that an interruption leaves the front
  if (todo_.size() > 1) publisher_ = std::make_unique<RunPublisher>(folder_.runs());
  const auto work = [&](int) {
    for (std::size_t k = next++; k < todo_.size() && !stop_requested(); k = next++) run_one(todo_[k]);
  };
  if (jobs == 1) {
    work(0);
  } else {
    // oneTBB's default limit is the number of cores.
    const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(jobs));
    tbb::task_arena arena(jobs, 1);
    arena.execute([&] { tbb::parallel_for(0, jobs, 1, work); });
  }
  publisher_.reset();
}

RunState Sweep::state_of(const std::exception_ptr& error, double wall_s) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Interrupted&) {
    return {RunState::kNotRun, "", wall_s};
  } catch (const InputError& e) {
    return {RunState::kBadInput, message_of(e), wall_s};
  } catch (const std::exception& e) {
    return {RunState::kFailed, message_of(e), wall_s};
  }
  return {RunState::kDone, "", wall_s};
}

std::function<void(const std::string&)> Sweep::line_printer() {
  if (options_.quiet) return {};
  return [this](const std::string& line) {
    const std::lock_guard lock(report_);
    progress_->clear_line();
    err_ << "kvlab: " << line << "\n" << std::flush;
  };
}

void Sweep::run_one(std::size_t i) {
  const auto began = std::chrono::steady_clock::now();
  const auto wall_s = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  bool is_waiting = false;
  const auto publish = [&](FreshRun run) {
    if (publisher_ == nullptr) return publish_at_once(std::move(run));
    publisher_->add(std::move(run), [this, i, wall = wall_s()](const std::exception_ptr& error) { finish(i, state_of(error, wall)); });
    is_waiting = true;
  };
  std::exception_ptr error;
  try {
    const auto require_unchanged = [&] { inputs_.require_unchanged(experiment_.runs[i]); };
    require_unchanged();
    const RunTask task{experiment_, experiment_.runs[i], folder_.runs(), origin_of(i), require_unchanged, publish};
    const RunOptions options{options_.fast_forward, &stop_requested(), &progress_->requests(), line_printer(), !options_.shows_progress};
    if (plan_.only)
      execute_prepared(*plan_.only->run, task, options, &plan_.only->params);
    else
      execute_run(kinds_, task, options);
  } catch (...) {
    error = std::current_exception();
  }
  if (!is_waiting) finish(i, state_of(error, wall_s()));
}

void Sweep::finish(std::size_t i, RunState state) {
  const std::lock_guard lock(report_);
  if (state.outcome == RunState::kBadInput || state.outcome == RunState::kFailed) {
    progress_->clear_line();
    err_ << fmt::format("kvlab: run {:04} ({}) failed: {}\n", i + 1, run_title(experiment_, experiment_.runs[i]), state.message);
  } else if (state.outcome == RunState::kDone && !options_.quiet && !options_.shows_progress && experiment_.runs.size() > 1) {
    out_ << fmt::format("run {:04} of {}: {} ({:.2f} s)\n", i + 1, experiment_.runs.size(), run_title(experiment_, experiment_.runs[i]),
                        state.wall_s)
         << std::flush;
  }
  progress_->run_done();
  states_[i] = std::move(state);
}

// If the last sync is older than `after`.
void Sweep::sync_runs(std::chrono::steady_clock::duration after) {
  const std::lock_guard lock(report_);
  const auto now = std::chrono::steady_clock::now();
  if (now - synced_ < after) return;
  synced_ = now;
  sync_path(folder_.runs());
}

int Sweep::status() const {
  if (stop_requested()) return 130;
  const auto count = [&](RunState::Outcome o) {
    return std::count_if(states_.begin(), states_.end(), [&](const RunState& s) { return s.outcome == o; });
  };
  if (count(RunState::kFailed) > 0 || (merges() && count(RunState::kNotRun) > 0)) return 1;
  return count(RunState::kBadInput) > 0 ? 2 : 0;
}

// On one line. After --force the same command would repeat all runs.
void Sweep::report_stop(std::size_t complete) const {
  const std::string place = folder_.path().string();
  bool has_answers = false;
  for (std::size_t i = 0; i < states_.size(); ++i) has_answers = has_answers || fs::exists(folder_.partial_of(origin_of(i).input_key));
  if (complete > 0)
    err_ << fmt::format("kvlab: stopped; {} of {} runs {} done and kept in {}{}\n", complete, states_.size(), complete == 1 ? "is" : "are",
                        place, options_.force ? "" : ", and the same command does the rest");
  else
    err_ << fmt::format("kvlab: stopped before any of {} runs was done{}\n", states_.size(),
                        has_answers ? fmt::format("; answers are kept in {}, and the same command goes on from them", place) : "");
}

// Runs that no shard has.
void Sweep::report_missing() const {
  std::size_t missing = 0, first = 0;
  for (std::size_t i = states_.size(); i-- > 0;)
    if (states_[i].outcome == RunState::kNotRun) ++missing, first = i;
  if (missing == 0) return;
  std::string changed;
  for (const auto& [code, runs] : stale_) changed += fmt::format("; {} were made before {} changed", runs, code);
  err_ << fmt::format(
      "kvlab: {} of {} runs are missing, the first {}{}: do the shards that stopped again, or the rest with "
      "'kvlab run {}', then merge again\n",
      missing, states_.size(), run_title(experiment_, experiment_.runs[first]), changed, experiment_.file);
}

}  // namespace kvlab
