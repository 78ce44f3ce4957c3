#pragma once

#include <memory>
#include <string>

#include "base/config_file.h"

namespace kvlab {

// A model's file as one mapping without nulls: of a multimodal config the text part, which takes from the outer keys what it lacks.
struct ModelFile {
  std::shared_ptr<const ConfigFile> config;
  std::string family;  // model_type of the text; "": the file has none
  bool has_null_kv_heads = false, has_null_window = false,
       has_null_q_rank = false;  // which some families read in another way than a missing key
  bool is_multimodal = false;
  // A file of its own in the folder that says how weights are quantized, where config.json does not; null: none.
  std::shared_ptr<const ConfigFile> quantization;
};

// InputError where the file cannot be read, or is a multimodal one whose text is not known.
ModelFile load_model_file(const std::string& file);

}  // namespace kvlab
