#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/config/read_config.h"

namespace kvlab {

// A parsed config file.
struct ConfigFile {
  std::string name;  // as the user typed it
  YAML::Node root;
  std::map<std::string, std::string> set_by;  // path -> "--set a.b=c" for values that came from the command line
  // Searched in order for relative paths; by default the working directory and the file's folder.
  std::vector<std::filesystem::path> folders;
};

// "file:line:column", from 1; only the file for a node without a mark.
std::string place(const std::string& file, const YAML::Mark& mark);

// "--set a.b=c" for a value from the command line, else its place in the file.
std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path);

}  // namespace kvlab
