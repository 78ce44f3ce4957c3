#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// Stages are data, not a sweep axis: in every `arrival` below `root`, `stages: [{...}, {...}]` becomes `stages: {stage 1: {...}, stage 2:
// {...}}`, with an element's `name` as its key. InputError with a place in `file`: equal names.
void name_stages(YAML::Node root, const std::string& file);

}  // namespace kvlab
