#pragma once

#include "app/compare/simulated_runs.h"
#include "traces/logs/real_log.h"

namespace kvlab {

// Compares the statistics of a file without rows with the same statistics of the simulated runs. If they come from histograms, the bucket
// of each quantile is in two more columns, real_lo and real_hi. Statistics that results do not have are left out and named.
Comparison compare_statistics(const RealLog& log, const SimulatedRuns& runs);

}  // namespace kvlab
