#include "app/runs/sweep_plan.h"

#include "app/results/results.h"
#include "app/results/view.h"
#include "app/runs/slow_count.h"
#include "base/usage.h"
#include "traces/logs/real_log.h"

namespace kvlab {

SweepPlan check_all(RunKinds& kinds, const Experiment& experiment, const SweepOptions& options, InputFiles& inputs, std::ostream& err) {
  SweepPlan all;
  all.tables = {"summary.csv", "manifest.json", "resolved.yaml"};
  const Choices* last = nullptr;
  SlowCount progress(options.quiet ? nullptr : &err, options.shows_progress, "checking", experiment.runs.size());
  for (const RunSpec& run : experiment.runs) {
    progress.next();
    if (last == run.choices.get()) {
      all.kinds.push_back(all.kinds.back());
      all.codes.push_back(all.codes.back());
      continue;
    }
    last = run.choices.get();
    Params p(experiment.config, run.choices, "the experiment");
    const UsageLog usage;
    const std::unique_ptr<PreparedRun> prepared = kinds.read(p, run.seed);
    all.kinds.push_back(&prepared->kind());
    all.codes.push_back(code_version(usage.sources()));
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
