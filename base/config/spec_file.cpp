#include "base/config/spec_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/config/config_file.h"
#include "base/data_root.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

std::string way_to_own(const std::string& kind) {
  if (kind == "hardware")
    return "; for a card of your own write 'hardware: FILE.yaml' (profiles/README.md), or measure it with './kvlab calibrate --gpu 0'";
  if (kind == "model") return "; for a model of your own write 'model: FOLDER' or 'model: FILE' with its config.json";
  return "";
}

}  // namespace

namespace {

// "org/Llama-3.1-9B-Instruct" -> "Llama-3.1-9B", for near names.
std::string without_organisation(const std::string& text) {
  if (!is_hub_id(text)) return text;
  std::string name = text.substr(text.find('/') + 1);
  for (const char* const variant : {"-Instruct", "-instruct", "-chat", "-Chat", "-it", "-hf", "-Base"})
    if (const std::size_t at = name.find(variant); at != std::string::npos && at > 0) name.resize(at);
  return name;
}

}  // namespace

std::string find_spec_file(const std::string& name_or_path, const std::string& folder, const std::string& kind) {
  std::error_code error;
  const fs::path named = fs::path(folder) / (name_or_path + ".yaml");
  for (const std::string& file : {name_or_path, named.string()}) {
    if (!fs::is_regular_file(file, error)) continue;
    UsageLog::note_file(file);
    return file;
  }
  const std::vector<std::string> known = yaml_names(folder);
  const std::string name = without_organisation(name_or_path);
  throw InputError("unknown " + kind + " '" + name_or_path + "': neither a file nor a name in " + folder + suggestion(name, known) +
                   (meant_names(name, known).empty() ? way_to_own(kind) : "") + (kind == "model" ? hub_advice(name_or_path, false) : ""));
}

std::string file_or_name(const Params& p, const std::string& text) {
  const std::string file = p.resolve_file(text);
  std::error_code error;
  return fs::exists(file, error) ? file : text;
}

namespace {

// Copies only mappings with a null: other nodes keep their place for messages.
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
  return shipped_folder(folder, sample);
}

}  // namespace

std::vector<fs::path> yaml_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> yaml_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& file : yaml_files(folder)) names.push_back(file.stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> shipped_yaml_files(const std::string& folder) {
  const fs::path here = folder, shipped = fs::path(profiles_folder()).parent_path() / folder;
  std::error_code error;
  return yaml_files(fs::exists(here, error) ? here : shipped);
}

std::string profiles_folder() { return data_folder("KVLAB_PROFILES", "profiles", "hardware"); }

std::string shipped_profiles(const std::string& name) {
  const fs::path own = fs::path(profiles_folder()) / name;
  std::error_code error;
  return (fs::exists(own, error) ? own : data_root() / "profiles" / name).string();
}

std::vector<std::string> shipped_profile_names(const std::string& folder) {
  std::set<std::string> names;
  for (const fs::path& profiles : {fs::path(profiles_folder()), data_root() / "profiles"})
    for (const std::string& name : yaml_names(profiles / folder)) names.insert(name);
  return {names.begin(), names.end()};
}

std::string systems_folder() { return data_folder("KVLAB_SYSTEMS", "policies/systems", "distserve.yaml"); }

std::string recipes_folder() { return data_folder("KVLAB_RECIPES", "policies/kv/recipes", "full.yaml"); }

}  // namespace kvlab
