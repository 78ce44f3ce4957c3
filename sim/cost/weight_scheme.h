#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cost/model_spec.h"

namespace kvlab {

// From profiles/quantization.yaml.
struct WeightScheme {
  std::string name, means;
  std::string config;  // quantization_config as YAML
};

// Throws InputError.
WeightScheme find_weight_scheme(const std::string& name);
// "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B-Instruct" and fp8; nullopt without suffix.
struct QuantizedName {
  std::string base;
  WeightScheme scheme;
};
std::optional<QuantizedName> split_quantized_name(const std::string& name);

// load_model_spec() with a named format; "none": the file's. Throws InputError for an unknown format, or another in the file.
ModelSpec load_quantized_model(const std::string& name_or_path, const std::string& models_folder, const std::string& scheme);

}  // namespace kvlab
