#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// Puts in the place of every merge key (`<<: *base`, or a list of such) below `root` the keys of what it names, but for those that the
// mapping has itself; of two that are named the first counts. yaml-cpp knows no merge keys. InputError with a place of `file` where a merge
// key names something else than mappings.
void resolve_merge_keys(YAML::Node& root, const std::string& file);

}  // namespace kvlab
