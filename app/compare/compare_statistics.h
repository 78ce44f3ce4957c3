#pragma once

#include "app/compare/simulated_runs.h"
#include "traces/logs/real_log.h"

namespace kvlab {

// For a log without rows. With histograms, columns real_lo and real_hi have the bucket. Omits and names statistics that results lack.
Comparison compare_statistics(const RealLog& log, const SimulatedRuns& runs);

}  // namespace kvlab
