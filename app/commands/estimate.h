#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/make_cost_model.h"

namespace CLI {
class App;
}

namespace kvlab {

// profile: as in an experiment, as one line of YAML.
struct MachineOptions {
  std::string model, quantization, hardware, profile = "roofline";
  int tp = 1;
  bool json = false;
};
void add_machine_options(CLI::App& command, MachineOptions& options);
CostSetup read_machine(const MachineOptions& options);
inline constexpr int kMostTokens = 1 << 26, kMostRows = 100'000;

// `kvlab estimate` (docs/cost-model.md, "Estimates without a simulation").
struct EstimateCommand : MachineOptions {
  std::int32_t prompt_tokens = 1024, output_tokens = 128;
  std::int32_t batch = 0;    // 0: the largest that fits
  double memory_frac = 0.9;  // for weights and KV
  double watts = 0;          // for GPUs and cooling; 0: unlimited
  double pue = 1;            // power usage effectiveness
};

// key: with unit. value: nullopt if unknown or undefined. form: the formula in words.
struct EstimatedFigure {
  std::string key;
  std::optional<double> value;
  std::string form;
};

// Throws InputError if model or batch exceed memory.
std::vector<EstimatedFigure> estimate(const CostSetup& setup, const EstimateCommand& command);
int print_estimate(const EstimateCommand& command, std::ostream& out);

}  // namespace kvlab
