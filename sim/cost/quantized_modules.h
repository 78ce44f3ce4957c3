#pragma once

#include <cstdint>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/model_spec.h"

namespace kvlab {

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
