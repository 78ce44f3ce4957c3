#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvlab {

// A parsed config file and how messages name the places in it.
struct ConfigFile {
  std::string name;  // as the user typed it
  YAML::Node root;
  std::map<std::string, std::string> set_by;  // path -> "--set a.b=c" for values that came from the command line
  // Folders in which relative paths are searched, in this order: the working directory and the file's own folder, unless the file says
  // otherwise (app/runs/experiment.h).
  std::vector<std::filesystem::path> folders;
};

// The path of a file that a config names: as given if absolute, else in the first of the folders that has it; in the first folder if none
// does.
std::string find_named_file(const ConfigFile& config, const std::string& path);

// Parses a YAML (or JSON) file, merge keys (`<<: *base`) resolved. Errors: missing file, syntax, duplicate key, top level not a mapping,
// aliases that repeat more than a file of its size has reason to; each with file:line:column.
std::shared_ptr<const ConfigFile> load_config(const std::string& file, const std::vector<std::string>& overrides = {});
std::shared_ptr<const ConfigFile> parse_config(const std::string& text, const std::string& name,
                                               const std::vector<std::string>& overrides = {});

// "file:line:column", both from 1; the file alone where a node comes from no file.
std::string place(const std::string& file, const YAML::Mark& mark);

// How messages name the value at `path` ("memory.num_blocks"): "--set a.b=c" where the command line gave it, else its place in the file.
std::string place_of(const ConfigFile& config, const YAML::Node& node, const std::string& path);

}  // namespace kvlab
