#pragma once

#include <string>

namespace kvlab {

// A model's file, with a remark if found by a Hugging Face id.
struct FoundModel {
  std::string file, remark;
  std::string scheme;  // weight format in the name, if the file has none (profiles/quantization.yaml)
};

// By path, name in models_folder, or Hugging Face id: in profiles/hugging_face.yaml, the local cache, or by its name without organisation
// and variant (-Instruct). Throws InputError with similar names and advice.
FoundModel find_model_file(const std::string& name_or_path, const std::string& models_folder);

// Name in models_folder for a hub id, a path ending in an id or name, or a cache folder of huggingface_hub. "": unknown.
std::string shipped_model_of(const std::string& named, const std::string& models_folder);

}  // namespace kvlab
