#pragma once

#include <memory>
#include <string>

#include "base/config/config_file.h"

namespace kvlab {

// A model's file as a mapping without nulls. For a multimodal config: the text part, completed by outer keys.
struct ModelFile {
  std::shared_ptr<const ConfigFile> config;
  std::string family;  // model_type of the text, or ""
  bool has_null_kv_heads = false, has_null_window = false,
       has_null_q_rank = false;  // some families distinguish null from missing
  bool is_multimodal = false;
  // Separate file with the weights' quantization if config.json lacks it, or null.
  std::shared_ptr<const ConfigFile> quantization;
};

// Sets quantization_config (a YAML mapping). A file with the same method keeps its own; otherwise replaces it or throws InputError.
void set_quantization(ModelFile& model, const std::string& name, const std::string& config, bool replaces);

// Throws InputError if unreadable, or multimodal with unknown text part.
ModelFile load_model_file(const std::string& file);

}  // namespace kvlab
