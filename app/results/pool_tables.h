#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace kvlab {

struct PoolMemory {
  std::int64_t weights_bytes = 0;  // one GPU, with vision encoder
  std::int64_t kv_bytes = 0;       // one replica
};

struct PoolRow {
  std::string name, role;                 // role: encode, prefill, decode or both
  std::uint32_t replicas = 1, ranks = 1;  // ranks: per replica
  int gpus = 1;                           // per replica
  std::optional<double> energy_j;
  std::optional<PoolMemory> memory;       // nullopt: no images
  double peak_flops = 0, peak_bytes = 0;  // per second, one encode replica
  [[nodiscard]] bool encodes() const { return role == "encode"; }
};

// docs/results.md. pools: as in the summary, then encode pools.
std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string links_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);
std::string stores_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary);

}  // namespace kvlab
