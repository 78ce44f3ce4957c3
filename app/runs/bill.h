#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// Joules: idle power for `gpu_s`, the seconds of all GPUs, and the rest up to peak power for the `peak_s` that each of `gpus` is at peak.
double energy_j(const PowerSpec& power, double gpu_s, double peak_s, double gpus = 1);
// USD for this number of seconds of a GPU.
double dollars(double price_per_hour, double gpu_s);
double dollars_per_million(double dollars, double tokens);

// Figures that need a key that the hardware file lacks.
struct MissingFigure {
  std::string figure, key;  // "energy", "'power: {...}'"
};
std::vector<MissingFigure> missing_figures(const HardwareSpec& hardware);

// Energy and price of a simulated run, warm-up included. None: not known, or no token came out. A token is one that a request emitted.
struct Bill {
  std::optional<double> energy_j, energy_j_per_token, dollars_per_million_tokens;
  std::string remark;  // which key of the hardware file is missing; "": none
};

// The GPUs of one pool in a run.
struct PoolUse {
  const CostSetup& cost;
  std::uint32_t num_replicas = 1;
  double peak_s = 0;  // PeakTime of its ranks
};

// Every GPU draws idle power from the first arrival to the last token, and the rest up to peak power for its time at peak
// (sim/peak_time.h). None: the hardware file has no power.
std::optional<double> energy_j(Span duration, const PoolUse& pool);

// Energy and price of all pools, each with its own hardware. Price: the hours of every GPU from the first arrival to the last token.
Bill bill_of(const ServingSummary& summary, const std::vector<PoolUse>& pools);
// The same for the only pool.
Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas);

}  // namespace kvlab
