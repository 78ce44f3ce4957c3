#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// The node as YAML text on one line.
std::string yaml_on_one_line(const YAML::Node& node);

}  // namespace kvlab
