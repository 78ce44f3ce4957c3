#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// A published serving system (policies/systems/NAME.yaml): dispatcher, KV transfer, and policies by role of pool, for keys that an
// experiment lacks.
struct ServingSystem {
  std::string name;  // "": none
  // Layers by priority: `system: {NAME: {...}}` of the experiment, then the file.
  struct Layer {
    Params parts;
    std::vector<std::pair<std::string, Params>> pools;  // by role: encode, prefill, decode, both
    [[nodiscard]] const Params* of_role(const std::string& role) const;
  };
  std::vector<Layer> layers;
  // Default pools in the file's order, one replica each.
  [[nodiscard]] std::vector<std::string> roles() const;
};

// Keys at a file's top level, and in its pools.
const std::set<std::string>& system_keys();
const std::set<std::string>& system_pool_keys();
// Keys of its encode pool.
const std::set<std::string>& system_encode_pool_keys();

// Reads `system`, if present. Throws InputError with file:line:column for an unknown system or key.
ServingSystem read_system(Params& p);

// For `kvlab list systems` and `kvlab describe NAME`.
struct SystemCard {
  std::string name, summary, paper, confidence, notes;
  std::vector<std::pair<std::string, std::string>> parts;  // ("dispatcher", "prefill scheduler", ...; value as YAML on one line)
};
SystemCard load_system_card(const std::string& name);

// Names in the systems folder, ascending.
std::vector<std::string> system_names();

}  // namespace kvlab
