#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

// A YAML or JSON file named by path or by its name in `folder`: "llama-3.1-8b" -> folder/llama-3.1-8b.yaml. InputError with
// the names that may be meant when there is neither, or with the way to bring one's own; `kind` is the word for it in the message.
std::string find_spec_file(const std::string& name_or_path, const std::string& folder, const std::string& kind);

// The file that a text read from `p` names, relative to its YAML, if it exists; else the text: a name for find_spec_file().
std::string file_or_name(const Params& p, const std::string& text);

// Hugging Face files write `null` for "not set"; Params takes an absent key for that. The given one stays as it is.
std::shared_ptr<const ConfigFile> without_nulls(const ConfigFile& config);

// The .yaml files of a folder, by path; none if there is no such folder.
std::vector<std::filesystem::path> yaml_files(const std::filesystem::path& folder);
// Their names without the extension, sorted.
std::vector<std::string> yaml_names(const std::filesystem::path& folder);
// The .yaml files of FOLDER here, else of the one beside profiles_folder(), by name.
std::vector<std::filesystem::path> shipped_yaml_files(const std::string& folder);

// Measured tables, models and hardware: $KVLAB_PROFILES, else ./profiles, else profiles/ in data_root() (base/data_root.h).
std::string profiles_folder();
// KV-policy recipes: $KVLAB_RECIPES, else policies/kv/recipes here or in data_root().
std::string recipes_folder();
// Serving systems: $KVLAB_SYSTEMS, else policies/systems here or in data_root().
std::string systems_folder();

}  // namespace kvlab
