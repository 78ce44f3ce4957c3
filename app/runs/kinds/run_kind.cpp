#include "app/runs/kinds/run_kind.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "app/results/run_files.h"
#include "app/results/run_folder.h"
#include "app/runs/report/report.h"
#include "app/runs/report/sweep_keys.h"
#include "base/text.h"

namespace kvlab {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kSimulation = "simulation";
constexpr std::array kChosenByHost = {"replay", "accuracy", "serving"};

// Without kinds chosen by `host`; the default is first.
std::vector<std::string> kind_names() {
  std::vector<std::string> names = Registry<RunKind>::names();
  std::erase_if(names,
                [](const std::string& name) { return std::find(kChosenByHost.begin(), kChosenByHost.end(), name) != kChosenByHost.end(); });
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == kSimulation; });
  return names;
}

std::unique_ptr<RunKind> make_kind(const std::string& name) {
  Params none = Params::empty("kind");
  return Registry<RunKind>::make(name, none, "kind of run");
}

// Only replay knows kept positions.
void refuse_kept(const Params& p) {
  for (const char* const key : {kKeptKey, kKeptStepsKey}) {
    if (!p.has_within("output", key)) continue;
    p.fail_at("output", std::string("'") + key +
                            "' writes the positions that a policy keeps, which only 'host: replay' knows: write 'host: replay' with "
                            "'samples' (docs/replay.md), or delete it");
  }
}

Json full_manifest(const RunTask& task, const Findings& findings, double wall_s) {
  Json m = {{"kvlab_run", kRunFormat},
            {"run", task.run.id},
            {"state", "finished"},
            {"seed", task.run.seed},
            {"input_key", task.origin.input_key},
            {"code", task.origin.code},
            {"inputs", task.origin.inputs}};
  m.update(findings.manifest);
  if (!findings.notes.empty()) m["note"] = join(findings.notes, "; ");
  if (findings.notes.size() > 1) m["notes"] = findings.notes;  // sentences of `note`
  for (const auto& [key, text] : {std::pair{"skipped", &findings.skipped}, {"not_served", &findings.not_served}})
    if (!text->empty()) m[key] = *text;
  m["wall_s"] = findings.wall_s.value_or(wall_s);
  return m;
}

// As comments: some defaults exclude given keys.
std::string defaults_in_force(const Params& p) {
  std::string text = kDefaultsTitle;
  for (const auto& [path, value] : p.defaults()) text += "#   " + path + ": " + value + "\n";
  return text;
}

}  // namespace

void refuse_orders(const Params& p) {
  for (const char* const key : {"order", "predictor"}) {
    if (p.has(key))
      p.fail_at(key, std::string("'") + key +
                         "' means nothing here, since no requests are scheduled: it belongs in an experiment that serves a 'trace', "
                         "with 'host: sim' or 'host: engine' (docs/orders.md)");
  }
}

std::set<std::string> PreparedRun::tables() const {
  std::set<std::string> names = kind_.tables();
  std::erase_if(names, [this](const std::string& name) { return !writes(name); });
  return names;
}

void RunKind::report(const SweepReport& report, std::ostream& out) const {
  print_table(report, metrics(), out);
  print_remarks(report, out);
}

std::string read_kind(Params& p) {
  p.text("name", "", "name of the results folder; default: the file's name");
  // Read by the sweep.
  if (p.has(kPathsFrom)) p.child(kPathsFrom, kPathsFrom);
  p.optional_child(kFigures, kFigures);
  p.optional_child(kExpect, kExpect);
  p.text(kIncludeResults, "", "results folders of other experiments whose runs are in the tables and figures, too");
  p.optional<std::int64_t>("seed", 1, 0, std::numeric_limits<std::int64_t>::max(), "seed of every random draw");
  p.optional<std::int64_t>("seeds", 1, 1, 100'000, "repetitions with seed, seed + 1, ...");
  const std::vector<std::string> names = kind_names();
  const std::string name = names[p.choice("kind", names, 0, "what a run does")];
  const std::size_t host =
      p.choice("host", {"sim", "replay", "engine"}, 0, "where policies run: in simulated serving, on recorded attention, in a real model");
  if (host != 1) refuse_kept(p);
  if (host == 0) return name;
  if (name != kSimulation) p.fail_at("host", "'host: replay' and 'host: engine' exclude 'kind: " + name + "'");
  return host == 1 ? "replay" : p.has("trace") ? "serving" : "accuracy";
}

RunKind& RunKinds::choose(Params& p) {
  const std::string name = read_kind(p);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<RunKind>& kind = made_[name];
  if (!kind) kind = make_kind(name);
  return *kind;
}

const std::set<std::string>& all_run_tables() {
  static const std::set<std::string> all = [] {
    std::set<std::string> names;
    for (const std::string& kind : Registry<RunKind>::names()) names.merge(make_kind(kind)->tables());
    return names;
  }();
  return all;
}

void execute_prepared(PreparedRun& prepared, const RunTask& task, const RunOptions& options, const Params* p) {
  const RunSpec& run = task.run;
  RunFiles files(task.runs, run.id, prepared.tables(), prepared.times_policy());
  const Findings findings = [&] {
    try {
      return prepared.run(files, options);
    } catch (const std::bad_alloc&) {
      throw InputError(prepared.out_of_memory());
    }
  }();
  files.add_file("summary.csv", summary_csv(run.id, run.seed, findings.rows));
  files.add_file("resolved.yaml", task.experiment.resolved_in(task.runs / run.id, run) + (p != nullptr ? defaults_in_force(*p) : ""));
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - task.began;
  task.is_valid();
  task.publish(files.finish(full_manifest(task, findings, wall.count())));
}

void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options) {
  Params p = task.experiment.params(task.run);
  execute_prepared(*kinds.read(p, task.run.seed), task, options, &p);
}

}  // namespace kvlab
