#pragma once

#include <iosfwd>

#include "app/results/results.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

// If axis 'host' has sim and engine, pairs runs of equal choices and seed in validation.csv (ttft, tpot, e2e in ms; diff_frac = simulated /
// real - 1). Returns false without a pair. Throws InputError if a median over seeds exceeds assert_frac > 0.
bool compare_hosts(const Experiment& experiment, ResultsFolder& results, double assert_frac, std::ostream* out);

}  // namespace kvlab
