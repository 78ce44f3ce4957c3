#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cost/model_spec.h"

namespace kvlab {

// Weight format in profiles/quantization.yaml.
struct WeightScheme {
  std::string name, means;
  std::string config;  // quantization_config of its checkpoints as YAML
};

// Throws InputError with the known names.
WeightScheme find_weight_scheme(const std::string& name);
// "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B-Instruct" and fp8; nullopt without a format suffix.
struct QuantizedName {
  std::string base;
  WeightScheme scheme;
};
std::optional<QuantizedName> split_quantized_name(const std::string& name);

// load_model_spec() with weights in a named format; "none": as in the file. Throws InputError for an unknown format, or if the file has
// another one.
ModelSpec load_quantized_model(const std::string& name_or_path, const std::string& models_folder, const std::string& scheme);

}  // namespace kvlab
