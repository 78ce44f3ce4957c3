#pragma once

#include <iosfwd>

#include "app/results/results.h"
#include "app/runs/experiment.h"

namespace kvlab {

// If 'host' is an axis with both sim and engine: compares every run of the engine with the simulation of the same choices and seed, and
// writes the folder's validation.csv: `<axes>,seed,sim_run,engine_run,metric,statistic,real,simulated,diff_frac`, of ttft, tpot and e2e
// (ms, from queued) mean, p50, p90 and p99; diff_frac = simulated / real - 1. Prints, for each configuration, the median over its seeds.
// Returns false where there is no such pair. `assert_frac` > 0: InputError when a median over the seeds is further off.
bool compare_hosts(const Experiment& experiment, ResultsFolder& results, double assert_frac, std::ostream* out);

}  // namespace kvlab
