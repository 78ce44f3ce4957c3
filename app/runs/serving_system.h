#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

// A published serving system, as policies/systems/NAME.yaml writes it down: a dispatcher, how KV moves, and the policies of each role's
// pools. An experiment takes from it what it does not set itself.
struct ServingSystem {
  std::string name;  // "": the experiment names none
  // A mapping that gives parts. The first layer that has a key gives it: `system: {NAME: {...}}` of the experiment, then the file.
  struct Layer {
    Params parts;
    std::vector<std::pair<std::string, Params>> pools;  // by role: encode, prefill, decode, both
    [[nodiscard]] const Params* of_role(const std::string& role) const;
  };
  std::vector<Layer> layers;
  // Roles of the pools of an experiment that has none of its own, in the order of the file; one replica each.
  [[nodiscard]] std::vector<std::string> roles() const;
};

// Keys at the top of a system file, and in its pools.
const std::set<std::string>& system_keys();
const std::set<std::string>& system_pool_keys();
// Keys of its encode pool.
const std::set<std::string>& system_encode_pool_keys();

// Reads `system` of an experiment, if there is one. InputError with file:line:column: unknown system, unknown key.
ServingSystem read_system(Params& p);

// The description of a system, for `kvlab list systems` and `kvlab describe NAME`.
struct SystemCard {
  std::string name, summary, paper, confidence, notes;
  std::vector<std::pair<std::string, std::string>> parts;  // "dispatcher", "prefill scheduler", ... and their values as YAML on one line
};
SystemCard load_system_card(const std::string& name);

// All names in the systems folder, ascending.
std::vector<std::string> system_names();

}  // namespace kvlab
