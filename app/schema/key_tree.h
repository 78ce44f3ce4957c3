#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/asked_keys.h"

namespace kvlab {

// A key with its documentation, and the keys below it.
struct KeyNode {
  AskedKeys::Asked doc;
  bool has_default = true;  // doc.fallback is that of every experiment
  std::map<std::string, KeyNode> below;
};

// The keys that readers asked for, as a tree. Keys that users name themselves become one node, kUserNamed.
KeyNode key_tree(const std::vector<AskedKeys::Asked>& asked);

inline constexpr const char* kUserNamed = "NAME";

}  // namespace kvlab
