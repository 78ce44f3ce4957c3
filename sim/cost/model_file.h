#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config_file.h"

namespace kvlab {

// From profiles/quantization.yaml.
struct WeightScheme {
  std::string name, means;
  std::string config;  // quantization_config as YAML
};

// Throws InputError.
WeightScheme find_weight_scheme(const std::string& name);
// "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B-Instruct" and fp8; nullopt without suffix.
struct QuantizedName {
  std::string base;
  WeightScheme scheme;
};
std::optional<QuantizedName> split_quantized_name(const std::string& name);

// The remark is for names found by a Hugging Face id.
struct FoundModel {
  std::string file, remark;
  std::string scheme;  // weight format in the name, if not in the file (profiles/quantization.yaml)
};

// By path, name in models_folder, or Hugging Face id: in profiles/hugging_face.yaml, the local cache, or the name without organisation and
// variant
// (-Instruct). Throws InputError with similar names.
FoundModel find_model_file(const std::string& name_or_path, const std::string& models_folder);

// For a hub id, a path ending in an id or name, or a huggingface_hub cache folder. "": unknown.
std::string shipped_model_of(const std::string& named, const std::string& models_folder);

// Separate files that ModelOpt, AutoGPTQ and AutoAWQ may write for a config.json, with their method.
std::vector<std::pair<std::filesystem::path, std::string>> quantization_files(const std::filesystem::path& model_file);

// A mapping without nulls. Multimodal: the text part, completed by outer keys.
struct ModelFile {
  std::shared_ptr<const ConfigFile> config;
  std::string family;  // text model_type, or ""
  bool has_null_kv_heads = false, has_null_window = false,
       has_null_q_rank = false;  // null differs from missing in some families
  bool is_multimodal = false;
  // Weights' quantization in a separate file, or null.
  std::shared_ptr<const ConfigFile> quantization;
};

// quantization_config (YAML mapping). A file with the same method keeps its own, else it is replaced or InputError is thrown.
void set_quantization(ModelFile& model, const std::string& name, const std::string& config, bool replaces);

// Throws InputError if unreadable, or multimodal with unknown text part.
ModelFile load_model_file(const std::string& file);

}  // namespace kvlab
