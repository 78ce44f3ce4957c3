#include "app/runs/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <map>
#include <ostream>
#include <utility>

#include "app/compare/compare.h"
#include "app/results/results.h"
#include "app/results/safe_files.h"
#include "app/results/view.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/report/report.h"
#include "app/runs/report/sweep_keys.h"
#include "app/runs/sweep/chosen_runs.h"
#include "app/runs/sweep/progress.h"
#include "base/csv.h"
#include "base/usage.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds kSilent{500}, kBetween{250};

// For work over half a second: rewritten on a terminal, else printed once.
class SlowCount {
 public:
  // err: null: silent.
  SlowCount(std::ostream* err, bool is_terminal, std::string verb, std::size_t total)
      : err_(err), is_terminal_(is_terminal), verb_(std::move(verb)), total_(total), next_(std::chrono::steady_clock::now() + kSilent) {}

  ~SlowCount() {
    if (has_said_ && is_terminal_) *err_ << "\r\033[K" << std::flush;
  }

  SlowCount(const SlowCount&) = delete;
  SlowCount& operator=(const SlowCount&) = delete;

  void next() {
    ++done_;
    if (err_ == nullptr || (has_said_ && !is_terminal_)) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + kBetween;
    has_said_ = true;
    const std::string total = short_number(static_cast<double>(total_));
    if (is_terminal_)
      *err_ << fmt::format("\r\033[Kkvlab: {} {} of {} runs", verb_, short_number(static_cast<double>(done_)), total) << std::flush;
    else
      *err_ << fmt::format("kvlab: {} {} runs ...\n", verb_, total) << std::flush;
  }

 private:
  std::ostream* err_;
  bool is_terminal_, has_said_ = false;
  std::string verb_;
  std::size_t total_, done_ = 0;
  std::chrono::steady_clock::time_point next_;
};

// Results must not replace a file that is read.
void refuse_own_inputs(const InputFiles& inputs, const fs::path& folder) {
  std::error_code error;
  for (const auto& [file, fingerprint] : inputs.all()) {
    const fs::path path = file;
    if (!ResultsFolder::top_names().contains(path.filename().string())) continue;
    if (fs::equivalent(path.has_parent_path() ? path.parent_path() : fs::path("."), folder, error))
      throw InputError(file +
                       ": is read by the experiment, and is in the results folder, where it would be replaced: choose another folder "
                       "with --out");
  }
}

View write_view(const Experiment& experiment, const SweepOptions& options, const Sweep& sweep, ResultsFolder& folder, std::ostream& out) {
  View view = view_of(folder, experiment, complete_runs(sweep.states()));
  if (!options.shard) {
    const std::string remark = include_results(experiment, view);
    if (!options.quiet) out << remark;
  }
  std::vector<std::string> ids;
  for (const ViewRow& row : view.rows) ids.push_back(row.id);
  if (sweep.has_new_runs() || !has_tables_of(folder, ids)) folder.remove_comparisons();  // their runs are replaced
  join_runs(folder, view);
  return view;
}

// The front door draws figures of the named folder.
void compare(const Experiment& experiment, const SweepPlan& plan, const Sweep& sweep, const SweepOptions& options, ResultsFolder& folder,
             std::ostream* out) {
  if (const std::string& log = plan.comparisons.requests; !log.empty() && sweep.status() == 0) validate_results(log, folder, out);
  if (options.names_results) name_results(folder.path().string());
  compare_hosts(complete_part(experiment, sweep.states()), folder, plan.comparisons.max_diff_frac, out);
}

// Unless runs measure time. Returns a remark.
std::string drop_idle(Experiment& experiment, SweepPlan& plan) {
  const SeedCounts counts(experiment);
  const bool measures = std::any_of(plan.kinds.begin(), plan.kinds.end(), [](const RunKind* kind) { return kind->runs_engine(); });
  if (measures || counts.num_configurations() == experiment.runs.size()) return "";
  KeptSeeds kept = kept_seeds(experiment, counts, [&](std::size_t i) { return bool(plan.are_random[i]); });
  keep_runs(kept.places, experiment, plan);
  return kept.remark;
}

void keep_shard(const Shard& shard, Experiment& experiment, SweepPlan& plan, std::vector<std::string>& ids) {
  const std::vector<std::size_t> places = places_of_shard(ids, shard);
  keep_runs(places, experiment, plan);
  const std::vector<std::string> all = std::move(ids);
  ids.clear();
  for (const std::size_t i : places) ids.push_back(all[i]);
}

void adopt(const Experiment& experiment, const SweepPlan& plan, const SweepOptions& options, const ResultsFolder& folder) {
  if (options.shards.empty()) return;
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) places.emplace(experiment.runs[i].id, i);
  std::vector<std::string> ids;
  for (const auto& [id, place] : places) ids.push_back(id);
  adopt_runs(
      ids, options.shards, folder,
      [&](const std::string& id) { return experiment.resolved_in(folder.runs() / id, experiment.runs[places.at(id)]); },
      [&](const std::string& id, const CodeVersion& code) { return changed_code(code, plan.codes[places.at(id)]).empty(); });
}

fs::path folder_of(const Experiment& experiment, const SweepOptions& options) {
  const fs::path whole = results_folder(experiment, options.out);
  return options.shard ? shard_folder(whole, *options.shard) : whole;
}

// Returns the exit status.
int conclude(const Experiment& experiment, const SweepPlan& plan, const Sweep& sweep, const SweepOptions& options, ResultsFolder& folder,
             std::ostream& out, std::ostream& err) {
  const int status = sweep.status();
  const std::vector<std::size_t> complete = complete_runs(sweep.states());
  if (!options.quiet) print_report(*plan.kinds[complete.front()], experiment, sweep.states(), folder, out);
  if (status != 130) {
    if (!options.shard) compare(experiment, plan, sweep, options, folder, options.quiet ? nullptr : &out);
    report_failures(experiment, sweep.states(), err);
  }
  const std::size_t unmet = status == 0 && !options.shard ? check_expectations(experiment, folder, err) : 0;
  if (!options.quiet) out << "wrote " << folder.path().string() << "\n" << std::flush;
  if (options.on_written) options.on_written(folder.path());
  if (status == 130) sweep.report_stop(complete.size());
  return unmet > 0 ? kUnmetStatus : status;
}

}  // namespace

void keep_runs(const std::vector<std::size_t>& places, Experiment& experiment, SweepPlan& plan) {
  const auto keep = [&](auto& all) {
    auto kept = std::move(all);
    all.clear();
    for (const std::size_t i : places) all.push_back(std::move(kept[i]));
  };
  keep(experiment.runs), keep(plan.kinds), keep(plan.codes);
  const std::vector<bool> were_random = std::move(plan.are_random);
  plan.are_random.clear();
  for (const std::size_t i : places) plan.are_random.push_back(were_random[i]);
}

SweepPlan check_all(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, InputFiles& inputs, std::ostream& err) {
  SweepPlan all;
  all.tables = {"summary.csv", "manifest.json", "resolved.yaml"};
  if (!expectations_of(experiment).empty()) all.tables.insert(kExpectationsTable);
  const SeedCounts seeds(experiment);
  const Choices* last = nullptr;
  std::optional<std::set<std::string>> sources;  // of the run before
  SlowCount progress(options.quiet ? nullptr : &err, options.shows_progress, "checking", experiment.runs.size());
  for (const RunSpec& run : experiment.runs) {
    progress.next();
    if (last == run.choices.get()) {
      all.kinds.push_back(all.kinds.back());
      all.codes.push_back(all.codes.back());
      all.are_random.push_back(all.are_random.back());
      continue;
    }
    last = run.choices.get();
    Params p(experiment.config, run.choices, "the experiment");
    const UsageLog usage;
    std::unique_ptr<PreparedRun> prepared = kinds.read(p, run.seed);
    all.kinds.push_back(&prepared->kind());
    all.codes.push_back(sources == usage.sources() ? all.codes.back() : code_version(usage.sources()));
    sources = usage.sources();
    all.are_random.push_back(!seeds.has_several(run) || prepared->kind().runs_engine() || is_random(*prepared, run.seed));
    if (!options.fast_forward) all.codes.back()["--fast-forward"] = "off";
    inputs.add_spec_files(last, usage.files());
    for (const std::string& table : prepared->tables())
      if (is_joined(table, experiment.runs.size())) all.tables.insert(table);
    all.comparisons = prepared->comparisons();
    if (experiment.runs.size() == 1) all.only.emplace(CheckedRun{std::move(p), std::move(prepared)});
    if (all.comparisons.requests.empty()) continue;
    all.tables.insert(std::begin(kValidationFiles), std::end(kValidationFiles));
    read_real_log(all.comparisons.requests);
  }
  return all;
}

fs::path results_folder(const Experiment& experiment, const std::string& out) {
  return out.empty() ? fs::path("results") / experiment.name : fs::path(out);
}

int run_sweep(Experiment experiment, const SweepOptions& options, std::ostream& out, std::ostream& err) {
  const auto began = std::chrono::steady_clock::now();
  InputFiles inputs(experiment);  // stamps them before they are read
  RunKinds kinds;
  if (!options.shard) require_included(experiment, folder_of(experiment, options));
  SweepPlan plan = check_all(kinds, experiment, options, inputs, err);
  const std::string remark = drop_idle(experiment, plan);
  if (!options.quiet) out << remark;
  const StopSignals signals;
  ResultsFolder folder(folder_of(experiment, options), experiment, options.join ? ResultsFolder::Joins::kYes : ResultsFolder::Joins::kNo);
  if (options.writes_file) replace_file(experiment.file, experiment.text);
  std::vector<std::string> ids = run_ids(experiment, inputs);
  refuse_own_inputs(inputs, folder.path());
  if (options.shard) keep_shard(*options.shard, experiment, plan, ids);
  if (ids.empty()) {
    folder.remove_if_new();
    out << "this shard has no runs: there are more shards than runs\n";
    return 0;
  }
  folder.begin_sweep(ids, plan.tables);
  for (std::size_t i = 0; i < ids.size(); ++i) experiment.runs[i].id = ids[i];
  adopt(experiment, plan, options, folder);
  Sweep sweep(kinds, experiment, options, plan, inputs, folder, out, err);
  sweep.find_finished();
  sweep.run_all();
  const int status = sweep.status();
  const std::vector<std::size_t> complete = complete_runs(sweep.states());
  if (!options.shards.empty()) sweep.report_missing();
  if (complete.empty()) {
    folder.remove_if_new();
    if (status == 130) sweep.report_stop(0);
    return status;
  }
  const View view = write_view(experiment, options, sweep, folder, out);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  write_manifest(experiment, sweep.states(), inputs, view, folder, wall.count());
  return conclude(experiment, plan, sweep, options, folder, out, err);
}

}  // namespace kvlab
