#include "base/spec_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

namespace fs = std::filesystem;

std::string find_spec_file(const std::string& name_or_path, const std::string& folder, const std::string& kind) {
  std::error_code error;
  const fs::path named = fs::path(folder) / (name_or_path + ".yaml");
  for (const std::string& file : {name_or_path, named.string()}) {
    if (!fs::is_regular_file(file, error)) continue;
    UsageLog::note_file(file);
    return file;
  }
  std::vector<std::string> known;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".yaml") known.push_back(entry.path().stem().string());
  }
  std::sort(known.begin(), known.end());
  throw InputError("unknown " + kind + " '" + name_or_path + "': neither a file nor a name in " + folder + suggestion(name_or_path, known));
}

namespace {

// Nodes stay where they are in the file, for messages; only mappings with a null in or below them are made anew.
bool has_null(const YAML::Node& node) {
  if (!node.IsMap()) return node.IsNull();
  return std::any_of(node.begin(), node.end(), [](const auto& item) { return has_null(item.second); });
}

YAML::Node without_nulls(const YAML::Node& node) {
  if (!node.IsMap() || !has_null(node)) return node;
  YAML::Node kept(YAML::NodeType::Map);
  for (const auto& item : node)
    if (!item.second.IsNull()) kept.force_insert(item.first, without_nulls(item.second));
  return kept;
}

}  // namespace

std::shared_ptr<const ConfigFile> without_nulls(const ConfigFile& config) {
  auto kept = std::make_shared<ConfigFile>(config);
  kept->root.reset(without_nulls(config.root));
  return kept;
}

namespace {

std::string data_folder(const char* variable, const char* folder, const char* sample) {
  if (const char* set = std::getenv(variable)) return set;
  std::error_code error;
  if (fs::exists(fs::path(folder) / sample, error)) return folder;
  return fs::path(KVLAB_SOURCE_DIR) / folder;
}

}  // namespace

std::string profiles_folder() { return data_folder("KVLAB_PROFILES", "profiles", "hardware"); }

std::string recipes_folder() { return data_folder("KVLAB_RECIPES", "policies/kv/recipes", "full.yaml"); }

}  // namespace kvlab
