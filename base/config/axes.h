#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/config/read_config.h"

namespace YAML {
class Node;
}

namespace kvlab {

// A list element. label: a scalar, a recipe with budget ("snapkv 128"), pools with replicas ("prefill 2 decode 2"), a mapping's one key,
// else the index; equal labels get their position ("vllm_v1#2").
struct AxisElement {
  std::string path;
  std::size_t index = 0;
  std::string label;
};

// Combinations in file order, the last list fastest.
struct Grid {
  std::vector<AxisElement> elements;
  std::vector<std::vector<std::uint32_t>> points;  // indices into `elements`

  [[nodiscard]] Choices choices(std::size_t point) const;
};

inline constexpr std::size_t kMaxRuns = 100'000;

// data_lists: paths of lists that are values. Throws InputError for an empty list, above 100,000 combinations or 2,000,000 choices.
Grid expand_axes(const ConfigFile& file, const std::set<std::string>& data_lists = {});

// `node` at `path`, or a list's chosen element.
YAML::Node chosen_node(YAML::Node node, const std::string& path, const Choices& choices);

// Every list replaced by its chosen element.
YAML::Node resolved_tree(const ConfigFile& file, const Choices& choices);

}  // namespace kvlab
