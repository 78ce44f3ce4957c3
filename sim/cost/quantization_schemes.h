#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

inline constexpr double kScaleBits = 16;  // default

// Bits per weight; group <= 0: a row or more, negligible.
constexpr double share_of_group(double count, std::int64_t group) { return group > 0 ? count / static_cast<double>(group) : 0; }

// Throws InputError for an enabled key not in `keys` that may matter.
void check_quantization_keys(const Params& q, std::initializer_list<const char*> keys);
std::vector<std::string> modules_under(Params& q, std::initializer_list<const char*> keys);
std::int64_t read_group_size(Params& q, const char* key, std::int64_t fallback);

// `quantization_config`: weight formats, and KV's if not `kv_is_given`. The embedding, and a head that is not named, keep the model's type.
// Throws InputError with its place if not priced or unknown.
void read_quantization(Params& q, bool kv_is_given, ModelSpec& m);

// bits: per weight with scales; compute: of products.
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
  std::vector<std::string> ignored;  // in the model's type
  std::optional<QuantizedScheme> head;
  bool experts_only = false;
};

// With groups of modules or a named algorithm.
QuantizationPlan read_compressed_tensors(Params& q, ModelSpec& m);
QuantizationPlan read_modelopt(Params& outer, ModelSpec& m);
// FP8, NVFP4, ... Throws InputError with its place if not priced.
QuantizedScheme modelopt_scheme(Params& q, const std::string& algorithm, const ModelSpec& m);

// Whole names ("model.layers.0.self_attn.q_proj"), path parts ("mlp.gate"), stars ("model.layers.*.self_attn"), or "re:.*self_attn.*". A
// name includes all modules below it.
class ModulePatterns {
 public:
  // Throws InputError, without a place, for a bad regular expression.
  explicit ModulePatterns(const std::vector<std::string>& patterns);
  [[nodiscard]] bool matches(const std::string& module) const;  // "layers.3.mlp.up_proj"

 private:
  std::set<std::string> whole_;          // starting at "layers."
  std::vector<std::string> parts_;       // ".mlp.gate."
  std::vector<std::regex> expressions_;  // for "model.layers. ..."
};

// Names are as in model classes.
struct ModuleOfLayer {
  enum class Part : std::uint8_t { kAttention, kMlp, kExperts } part = Part::kAttention;
  std::int64_t parameters = 0;
  std::vector<std::string> names;
};
std::vector<ModuleOfLayer> modules_of_layer(const ModelSpec& m, std::int64_t layer);

}  // namespace kvlab
