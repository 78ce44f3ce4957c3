#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/config/read_config.h"

namespace kvlab {

// The node as YAML text on one line.
std::string yaml_on_one_line(const YAML::Node& node);

struct ConfigFile {
  std::string name;  // as the user typed it
  YAML::Node root;
  std::map<std::string, std::string> set_by;  // path -> "--set a.b=c" for command-line values
  // Searched in order for relative paths; default: working directory, then the file's folder.
  std::vector<std::filesystem::path> folders;
};

// "file:line:column", from 1; only the file without a mark.
std::string place(const std::string& file, const YAML::Mark& mark);

// "--set a.b=c" for a command-line value, else its place in the file.
std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path);

}  // namespace kvlab
