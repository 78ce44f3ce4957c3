#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// bits: per weight including scales; compute: type of products.
struct QuantizedScheme {
  double bits = 16;
  Dtype compute = Dtype::kBf16;
};

struct QuantizationPlan {
  struct Rule {
    std::optional<std::vector<std::string>> targets;  // nullopt: every matrix in layers
    QuantizedScheme scheme;
  };
  std::vector<Rule> rules;           // the first match counts
  std::vector<std::string> ignored;  // keep the model's type
  std::optional<QuantizedScheme> head;
  bool experts_only = false;
};

// Also sets the model's quantization and, if the scheme has one, kv_dtype.
QuantizationPlan read_quantization_plan(Params& q, ModelSpec& m);

// For schemes with groups of modules or a named algorithm.
QuantizationPlan read_compressed_tensors(Params& q, ModelSpec& m);
QuantizationPlan read_modelopt(Params& outer, ModelSpec& m);
// Scheme of a ModelOpt name: FP8, NVFP4, ... Throws InputError with its place if not priced.
QuantizedScheme modelopt_scheme(Params& q, const std::string& algorithm, const ModelSpec& m);

}  // namespace kvlab
