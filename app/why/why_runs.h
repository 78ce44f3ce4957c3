#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/why/why_metric.h"

namespace kvlab {

struct WhyRun {
  std::string id, title;  // title: "scheduler=sarathi seed=2"; "" for a single run
  std::filesystem::path folder;
};

// Newest sweep in grid order, without repetition. Throws InputError without results or a finished run.
std::vector<WhyRun> runs_to_explain(const std::filesystem::path& folder);

// For the first run, or the result of the first successful search.
WhyMetric usual_metric_of(const std::vector<WhyRun>& runs);

// The best configuration's first run, or if that attains its SLO, the best run that does not. best: "Best of 5: scheduler=sarathi, P99 TTFT
// 1.2 s; within its error: ..." and the seed if several; else "".
struct WhyChoice {
  WhyRun run;
  std::string best;
};
WhyChoice choose_run(const std::filesystem::path& folder, const std::vector<WhyRun>& runs, const WhyMetric& metric);

}  // namespace kvlab
