#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// A matrix: bits of a weight with its share of the scales, and the type of the products.
struct QuantizedScheme {
  double bits = 16;
  Dtype compute = Dtype::kBf16;
};

// Which matrices have which scheme.
struct QuantizationPlan {
  struct Rule {
    std::optional<std::vector<std::string>> targets;  // none: every matrix inside layers
    QuantizedScheme scheme;
  };
  std::vector<Rule> rules;           // the first that has a matrix counts
  std::vector<std::string> ignored;  // modules that keep the model's type
  std::optional<QuantizedScheme> head;
  bool experts_only = false;
};

// Reads quantization_config by its method. Sets the model's quantization and, where the scheme has one, its kv_dtype.
QuantizationPlan read_quantization_plan(Params& q, ModelSpec& m);

// Its parts for schemes that list groups of modules, or name an algorithm.
QuantizationPlan read_compressed_tensors(Params& q, ModelSpec& m);
QuantizationPlan read_modelopt(Params& outer, ModelSpec& m);

}  // namespace kvlab
