#pragma once

#include <string>

namespace kvlab {

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

}  // namespace kvlab
