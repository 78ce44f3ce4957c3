#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvlab {

struct ConfigFile;

// The element of each list that a run takes: path of the list ("scheduler.sarathi.budget_tokens") -> index. A list is an axis of a sweep;
// Params reads the chosen element in its place.
struct Choices : std::map<std::string, std::size_t> {
  using map::map;
};

// Parses a YAML (or JSON) file, merge keys (`<<: *base`) resolved. Throws InputError with file:line:column: missing file, syntax, duplicate
// key, top level not a mapping, too many repeated aliases.
std::shared_ptr<const ConfigFile> load_config(const std::string& file, const std::vector<std::string>& overrides = {});
std::shared_ptr<const ConfigFile> parse_config(const std::string& text, const std::string& name,
                                               const std::vector<std::string>& overrides = {});

// The path of a file that a config names: absolute as given, else in the first of the config's folders that has it, else in the first
// folder.
std::string find_named_file(const ConfigFile& config, const std::string& path);

}  // namespace kvlab
