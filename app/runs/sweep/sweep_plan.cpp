#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <ostream>
#include <utility>

#include "app/results/results.h"
#include "app/results/view.h"
#include "app/runs/report/expectations.h"
#include "app/runs/sweep/seeds.h"
#include "app/runs/sweep/sweep_work.h"
#include "base/csv.h"
#include "base/usage.h"
#include "traces/logs/real_log.h"

namespace kvlab {

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
    const std::unique_ptr<PreparedRun> prepared = kinds.read(p, run.seed);
    all.kinds.push_back(&prepared->kind());
    all.codes.push_back(code_version(usage.sources()));
    all.are_random.push_back(!seeds.has_several(run) || prepared->kind().runs_engine() || is_random(*prepared, run.seed));
    if (!options.fast_forward) all.codes.back()["--fast-forward"] = "off";
    inputs.add_spec_files(last, usage.files());
    for (const std::string& table : prepared->tables())
      if (is_joined(table, experiment.runs.size())) all.tables.insert(table);
    all.comparisons = prepared->comparisons();
    if (all.comparisons.requests.empty()) continue;
    all.tables.insert(std::begin(kValidationFiles), std::end(kValidationFiles));
    read_real_log(all.comparisons.requests);
  }
  return all;
}

}  // namespace kvlab
