#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/config_file.h"

namespace kvlab {

// Which element of each list in a config file a run takes: path of the list ("scheduler.sarathi.budget_tokens") -> index.
// A list is an axis of a sweep; Params sees the chosen element in its place, with the element's own line and column.
using Choices = std::map<std::string, std::size_t>;

// One element of a list. The label names it in tables: a scalar itself, a recipe with its budget ("snapkv 128"), what a list of recipes has
// in common ("budget_tokens 128"), pools with their replicas ("prefill 2 decode 2"), the one key of a mapping, else its index. Elements of
// one list with equal labels get their position appended ("vllm_v1#2").
struct AxisElement {
  std::string path;
  std::size_t index = 0;
  std::string label;
};

// Every combination of list elements of a config, in the order of the file, the last list fastest.
struct Grid {
  std::vector<AxisElement> elements;
  std::vector<std::vector<std::uint32_t>> points;  // indices into `elements`, per combination

  [[nodiscard]] Choices choices(std::size_t point) const;
};

inline constexpr std::size_t kMaxRuns = 100'000;

// Paths in `data_lists` are lists that are values, not axes. Errors: an empty list; more than 100,000 combinations, or 2,000,000 choices
// in all of them.
Grid expand_axes(const ConfigFile& file, const std::set<std::string>& data_lists = {});

// `node` at `path`, or the chosen element where it is a list.
YAML::Node chosen_node(YAML::Node node, const std::string& path, const Choices& choices);

// The config with every list replaced by its chosen element, in the file's key order; a tree of its own, which may be changed.
YAML::Node resolved_tree(const ConfigFile& file, const Choices& choices);

}  // namespace kvlab
