#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace kvlab {

// Memory of a pool of a run with images.
struct PoolMemory {
  std::int64_t weights_bytes = 0;  // of one GPU, of a vision encoder too
  std::int64_t kv_bytes = 0;       // of one replica
};

// Columns of a pool that are not totals of the run.
struct PoolRow {
  std::string name, role;                 // role: encode, prefill, decode or both
  std::uint32_t replicas = 1, ranks = 1;  // ranks of each replica
  int gpus = 1;                           // of each replica
  std::optional<double> energy_j;
  std::optional<PoolMemory> memory;       // none: the experiment has no images
  double peak_flops = 0, peak_bytes = 0;  // per second, of an encode replica
  [[nodiscard]] bool encodes() const { return role == "encode"; }
};

// pools.csv, links.csv and stores.csv (docs/results.md) of one run; pools as in the summary, and after them its encode pools.
std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string links_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string stores_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);

}  // namespace kvlab
