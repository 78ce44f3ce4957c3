#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// A list of stages is data, not an axis of a sweep: in every `arrival` below `root`, `stages: [{...}, {...}]` becomes
// `stages: {stage 1: {...}, stage 2: {...}}`, with the `name` of an element as its key where it has one. InputError, with a place in
// `file`: two stages of one name.
void name_stages(YAML::Node root, const std::string& file);

}  // namespace kvlab
