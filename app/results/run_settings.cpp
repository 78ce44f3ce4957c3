#include "app/results/run_settings.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "app/results/run_files.h"
#include "base/read_file.h"

namespace kvlab {

namespace {

// Lines "#   path: value" after the title.
std::map<std::string, std::string> defaults_in(const std::string& text) {
  constexpr std::string_view kMark = "#   ";
  std::map<std::string, std::string> found;
  const std::size_t title = text.find(kDefaultsTitle);
  if (title == std::string::npos) return found;
  std::istringstream lines(text.substr(title));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(kMark) && colon != std::string::npos)
      found[line.substr(kMark.size(), colon - kMark.size())] = line.substr(colon + 2);
  }
  return found;
}

}  // namespace

RunSettings parse_run_settings(const std::string& text) {
  RunSettings settings{YAML::Node(YAML::NodeType::Undefined), {}};
  if (text.empty()) return settings;
  try {
    settings.tree.reset(YAML::Load(text));
  } catch (const YAML::Exception&) {
    return settings;
  }
  settings.defaults = defaults_in(text);
  return settings;
}

RunSettings read_run_settings(const std::filesystem::path& run) { return parse_run_settings(read_if_there(run / "resolved.yaml")); }

YAML::Node node_at(const YAML::Node& tree, const std::string& path) {
  YAML::Node at = tree;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (!at.IsDefined() || !at.IsMap() || !std::as_const(at)[key].IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    at.reset(std::as_const(at)[key]);
    begin = end + 1;
  }
  return at;
}

bool RunSettings::has(const std::string& path) const { return node_at(tree, path).IsDefined(); }

std::string RunSettings::text(const std::string& path) const {
  const YAML::Node node = node_at(tree, path);
  if (node.IsDefined() && node.IsScalar()) return node.Scalar();
  const auto found = defaults.find(path);
  return found == defaults.end() ? "" : found->second;
}

}  // namespace kvlab
