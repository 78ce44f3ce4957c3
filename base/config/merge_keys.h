#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// Resolves merge keys (`<<: *base`, or a list of such) below `root`, unknown to yaml-cpp. A mapping's own keys win, then the first named
// mapping. InputError with a place in `file`: a merge key names no mapping.
void resolve_merge_keys(YAML::Node& root, const std::string& file);

}  // namespace kvlab
