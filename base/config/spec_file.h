#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// A file by path, or by name in `folder`: "llama-3.1-8b" -> folder/llama-3.1-8b.yaml. InputError with near names; `kind`: name of the file
// type.
std::string find_spec_file(const std::string& name_or_path, const std::string& folder, const std::string& kind);

// The file that `text` names relative to its YAML, else `text`.
std::string file_or_name(const Params& p, const std::string& text);

// Removes null keys (unset in Hugging Face files).
std::shared_ptr<const ConfigFile> without_nulls(const ConfigFile& config);

// Sorted; empty without a folder.
std::vector<std::filesystem::path> yaml_files(const std::filesystem::path& folder);
// Without the extension.
std::vector<std::string> yaml_names(const std::filesystem::path& folder);
// FOLDER here, else next to profiles_folder().
std::vector<std::filesystem::path> shipped_yaml_files(const std::string& folder);

// Measured tables, models, hardware: $KVLAB_PROFILES, else ./profiles, else profiles/ in data_root() (base/data_root.h).
std::string profiles_folder();
// `name` in profiles_folder() if present, else in the program's profiles/.
std::string shipped_profiles(const std::string& name);
// Names of .yaml files in both, sorted.
std::vector<std::string> shipped_profile_names(const std::string& folder);
// $KVLAB_RECIPES, else policies/kv/recipes here or in data_root().
std::string recipes_folder();
// $KVLAB_SYSTEMS, else policies/systems here or in data_root().
std::string systems_folder();

}  // namespace kvlab
