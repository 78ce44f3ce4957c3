#pragma once

#include <filesystem>
#include <string>

namespace kvlab {

// True for a text that looks like an id of the Hugging Face hub ("org/name") and names no folder here.
bool is_hub_id(const std::string& text);

// The folder of an id's files in the local cache of huggingface_hub ($HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub):
// that of the branch main, else of the last snapshot that has a config.json; "" where there is none.
std::string cached_snapshot(const std::string& id);

// "; for a model of Hugging Face type 'hf download ID'" and that access must be asked for, where the organisation asks that. "" for a text
// that is no id. needs_weights: false: its config.json is enough.
std::string hub_advice(const std::string& id, bool needs_weights);

// The name of a model in a folder: the folder's own, or the model's where it is a snapshot of that cache.
std::string model_title(const std::filesystem::path& folder);

// The folder itself, or for an id the snapshot in the cache that has weights (*.safetensors). InputError with the advice above where an id
// has none; a text that is neither is returned as it is.
std::string weights_folder(const std::string& folder_or_id);

}  // namespace kvlab
