#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/make_cost_model.h"

namespace kvlab {

// The setting that `estimate` and `characterize` compute for. profile: as an experiment's `profile`, in one line of YAML.
struct MachineOptions {
  std::string model, hardware, profile = "roofline";
  int tp = 1;
  bool json = false;
};
// InputError as for an experiment with these keys.
CostSetup read_machine(const MachineOptions& options);

// `kvlab estimate`: closed forms for one load, without a simulation (docs/cost-model.md, "Estimates without a simulation").
struct EstimateCommand : MachineOptions {
  std::int32_t prompt_tokens = 1024, output_tokens = 128;
  std::int32_t batch = 0;    // 0: the most that fit
  double memory_frac = 0.9;  // of a GPU's memory, for weights and KV
  double watts = 0;          // power for GPUs and cooling; 0: any
  double pue = 1;            // power usage effectiveness: of all power over that of the GPUs
};

// One figure. key: with its unit. value: none where it is not known or does not exist. form: the formula in words.
struct EstimatedFigure {
  std::string key;
  std::optional<double> value;
  std::string form;
};

// InputError where model or batch do not fit into memory.
std::vector<EstimatedFigure> estimate(const CostSetup& setup, const EstimateCommand& command);
int print_estimate(const EstimateCommand& command, std::ostream& out);

}  // namespace kvlab
