#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// policies/systems/NAME.yaml: parts for keys that an experiment lacks.
struct ServingSystem {
  std::string name;  // "": none
  // By priority: `system: {NAME: {...}}` of the experiment, then the file.
  struct Layer {
    Params parts;
    std::vector<std::pair<std::string, Params>> pools;  // by role: encode, prefill, decode, both
    [[nodiscard]] const Params* of_role(const std::string& role) const;
  };
  std::vector<Layer> layers;
  // In the file's order, one replica each.
  [[nodiscard]] std::vector<std::string> roles() const;
};

const std::set<std::string>& system_keys();
const std::set<std::string>& system_pool_keys();
const std::set<std::string>& system_encode_pool_keys();

// Throws InputError for an unknown system or key.
ServingSystem read_system(Params& p);

struct SystemCard {
  std::string name, summary, paper, confidence, notes;
  std::vector<std::pair<std::string, std::string>> parts;  // "dispatcher", "prefill scheduler", ...; value as YAML on one line
};
SystemCard load_system_card(const std::string& name);

// Ascending.
std::vector<std::string> system_names();

}  // namespace kvlab
