#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas);

}  // namespace kvlab
