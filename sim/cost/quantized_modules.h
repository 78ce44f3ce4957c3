#pragma once

#include <cstdint>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/model_spec.h"

namespace kvlab {

// Names of modules as quantization configs write them: whole ("model.layers.0.self_attn.q_proj"), a part of the path ("mlp.gate"),
// with stars ("model.layers.*.self_attn"), or a regular expression ("re:.*self_attn.*"). A module's name takes in all below it.
class ModulePatterns {
 public:
  // InputError, without a place, for a regular expression that is none.
  explicit ModulePatterns(const std::vector<std::string>& patterns);
  [[nodiscard]] bool matches(const std::string& module) const;  // "layers.3.mlp.up_proj"

 private:
  std::set<std::string> whole_;          // from "layers." on
  std::vector<std::string> parts_;       // ".mlp.gate."
  std::vector<std::regex> expressions_;  // of "model.layers. ..."
};

// One matrix of a layer, with the names that model classes give it.
struct ModuleOfLayer {
  enum class Part : std::uint8_t { kAttention, kMlp, kExperts } part = Part::kAttention;
  std::int64_t parameters = 0;
  std::vector<std::string> names;
};
std::vector<ModuleOfLayer> modules_of_layer(const ModelSpec& m, std::int64_t layer);

}  // namespace kvlab
