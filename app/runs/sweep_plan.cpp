#include "app/runs/sweep_plan.h"

#include "base/usage.h"
#include "traces/logs/real_log.h"

namespace kvlab {

namespace {

void add_tables(const RunPlan& plan, const Experiment& experiment, std::set<std::string>& tables) {
  tables.insert({"summary.csv", "manifest.json", "resolved.yaml"});
  if (plan.kind == RunKind::kAccuracy) return static_cast<void>(tables.insert("answers.csv"));
  tables.insert({"requests.csv", "timeline.csv"});
  if (plan.kind == RunKind::kReplay) tables.insert({"heads.csv", "steps.csv"});
  if (plan.kind == RunKind::kServing) tables.insert("engine_steps.csv");
  if (plan.search) tables.insert("search.csv");
  if (plan.wants_perfetto && experiment.runs.size() == 1) tables.insert("trace.json");
  if (!plan.validate_requests.empty()) tables.insert(std::begin(kValidationFiles), std::end(kValidationFiles));
}

}  // namespace

SweepPlan check_all(const Experiment& experiment, const SweepOptions& options, InputFiles& inputs) {
  SweepPlan all;
  const Choices* last = nullptr;
  for (const RunSpec& run : experiment.runs) {
    if (last == run.choices.get()) {
      all.kinds.push_back(all.kinds.back());
      all.codes.push_back(all.codes.back());
      continue;
    }
    last = run.choices.get();
    Params p(experiment.config, run.choices, "the experiment");
    const UsageLog usage;
    const RunPlan plan = read_run_plan(p, run.seed);
    all.kinds.push_back(plan.kind);
    all.codes.push_back(code_version(usage.sources()));
    if (!options.fast_forward) all.codes.back()["--fast-forward"] = "off";
    inputs.add_spec_files(last, usage.files());
    add_tables(plan, experiment, all.tables);
    if (plan.accuracy && !all.samples.contains(plan.accuracy->text)) all.samples[plan.accuracy->text] = read_samples(*plan.accuracy);
    all.validate_requests = plan.validate_requests;
    all.max_diff_frac = plan.max_diff_frac;
    if (!all.validate_requests.empty()) read_real_log(all.validate_requests);
  }
  return all;
}

}  // namespace kvlab
