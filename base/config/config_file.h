#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/config/read_config.h"

namespace kvlab {

std::string yaml_on_one_line(const YAML::Node& node);

struct ConfigFile {
  std::string name;  // as typed
  YAML::Node root;
  std::map<std::string, std::string> set_by;  // path -> "--set a.b=c" for command-line values
  // For relative paths, in order; default: working directory, then the file's folder.
  std::vector<std::filesystem::path> folders;
};

// load_config(), one parse for a thread while the file is unchanged: for readers that change no node.
std::shared_ptr<const ConfigFile> shared_config(const std::string& file);

// "file:line:column", from 1; without mark the file.
std::string place(const std::string& file, const YAML::Mark& mark);

// "--set a.b=c" for a command-line value, else place().
std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path);

}  // namespace kvlab
