#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/report/bill.h"
#include "sim/simulation.h"

namespace kvlab {

// (column, value) in file order. "": no value.
using Fields = std::vector<std::pair<std::string, std::string>>;

// docs/results.md.
struct Answer {
  std::int64_t gpus = 1;
  std::string binding_limit, waits_for;  // "": none
};

// Without run, axes and seed (docs/results.md). Equal results give equal bytes. If not simulated, step time shares and bill are empty.
Fields summary_fields(const RunSummary& summary, const SimSetup& setup, const Bill& bill, const Answer& answer, bool is_simulated = true);

// By class and client (docs/results.md).
std::string service_csv(const std::string& run_id, const GroupSummary& groups, bool has_qoe);
// Rejected requests, with the first reason, and unfinished ones. No latency includes them.
std::string not_served(const ServingSummary& summary);

// On the trace, the timeline, requests over budget, and a warm-up that takes all requests.
std::vector<std::string> remarks_on(const ServingSummary& summary);

// Basis of step times, whether the KV block count is given or derived, time in overload.
std::string credibility_label(const RunSummary& summary, const SimSetup& setup, const std::string& cost_source);

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
