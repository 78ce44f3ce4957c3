#include "app/runs/sweep/run.h"

#include <new>
#include <utility>

#include "app/results/run_files.h"
#include "app/results/run_manifest.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Json = nlohmann::ordered_json;

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
  files.commit(full_manifest(task, findings, wall.count()));
}

void execute_run(RunKinds& kinds, const RunTask& task, const RunOptions& options) {
  Params p = task.experiment.params(task.run);
  execute_prepared(*kinds.read(p, task.run.seed), task, options, &p);
}

}  // namespace kvlab
