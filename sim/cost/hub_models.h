#pragma once

#include <string>

namespace kvlab {

// A model's file, and a remark on it where it was found by an id of the Hugging Face hub.
struct FoundModel {
  std::string file, remark;
};

// The file of a model that is named by path, by its name in models_folder, or by an id of the Hugging Face hub: one that
// profiles/hugging_face.yaml knows, else one in the local cache, else one whose name without organisation and variant (-Instruct) is the
// name of a file. InputError with the names that may be meant and the way to get the model.
FoundModel find_model_file(const std::string& name_or_path, const std::string& models_folder);

// The name in models_folder of a model as other programs name it: an id of the hub, a path that ends in one or in its name, or a folder of
// huggingface_hub's cache. "": it cannot be told.
std::string shipped_model_of(const std::string& named, const std::string& models_folder);

}  // namespace kvlab
