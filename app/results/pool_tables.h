#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace kvlab {

// Columns of a pool that are not totals of the run.
struct PoolRow {
  std::string name, role;
  std::uint32_t replicas = 1, ranks = 1;  // ranks of each replica
  int gpus = 1;                           // of each replica
  std::optional<double> energy_j;
};

// pools.csv, links.csv and stores.csv (docs/results.md) of one run; pools as in the summary.
std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string links_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string stores_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);

}  // namespace kvlab
