#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// In J: idle power for `gpu_s` (over all GPUs), and the rest of peak power for `peak_s` on each of `gpus`.
double energy_j(const PowerSpec& power, double gpu_s, double peak_s, double gpus = 1);
// USD.
double dollars(double price_per_hour, double gpu_s);
double dollars_per_million(double dollars, double tokens);

// Figures that lack a key of the hardware file.
struct MissingFigure {
  std::string figure, key;  // "energy", "'power: {...}'"
};
std::vector<MissingFigure> missing_figures(const HardwareSpec& hardware);

// With warm-up; tokens are those emitted. nullopt: unknown, or no token.
struct Bill {
  std::optional<double> energy_j, energy_j_per_token, dollars_per_million_tokens;
  std::string remark;  // missing keys, or why there is no price; else ""
};

// Clears the price of a run that misses its SLO, with a remark.
void take_price(Bill& bill);

struct PoolUse {
  const CostSetup& cost;
  std::uint32_t num_replicas = 1;
  double peak_s = 0;  // PeakTime of its ranks
};

// Idle power, and the rest of peak power at peak (sim/cost_totals.h). nullopt: unknown power.
std::optional<double> energy_j(Span duration, const PoolUse& pool);

// Over pools, each with its hardware. Price: GPU hours from first arrival to last token.
Bill bill_of(const ServingSummary& summary, const std::vector<PoolUse>& pools);

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
