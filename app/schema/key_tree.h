#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/config/asked_keys.h"

namespace kvlab {

struct KeyNode {
  AskedKeys::Asked doc;
  bool has_default = true;  // doc.fallback holds in every experiment
  std::map<std::string, KeyNode> below;
};

// Keys named by users become one node, kUserNamed.
KeyNode key_tree(const std::vector<AskedKeys::Asked>& asked);

inline constexpr const char* kUserNamed = "NAME";

}  // namespace kvlab
