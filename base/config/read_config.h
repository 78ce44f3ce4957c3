#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvlab {

struct ConfigFile;

// Path of each list ("scheduler.sarathi.budget_tokens") -> index of a run's element. A list is an axis of a sweep; Params reads the chosen
// element.
struct Choices : std::map<std::string, std::size_t> {
  using map::map;
};

// YAML (or JSON) with merge keys (`<<: *base`) resolved. InputError with file:line:column: missing file, syntax, duplicate key, top level
// not a mapping, too many repeated aliases.
std::shared_ptr<const ConfigFile> load_config(const std::string& file, const std::vector<std::string>& overrides = {});
std::shared_ptr<const ConfigFile> parse_config(const std::string& text, const std::string& name,
                                               const std::vector<std::string>& overrides = {});

// Absolute as given, else in the config's first folder that has it, else in its first.
std::string find_named_file(const ConfigFile& config, const std::string& path);

}  // namespace kvlab
