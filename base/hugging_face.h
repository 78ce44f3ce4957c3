#pragma once

#include <filesystem>
#include <string>

namespace kvlab {

// "org/name", not a local folder.
bool is_hub_id(const std::string& text);

// A folder in huggingface_hub's cache ($HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub): branch main, else the last
// snapshot with a config.json, else "".
std::string cached_snapshot(const std::string& id);

// "; for a model of Hugging Face type 'hf download ID'", with advice on gated models; "" for no id. needs_weights false: config.json
// suffices.
std::string hub_advice(const std::string& id, bool needs_weights);

// The name of the folder, or of a snapshot's model.
std::string model_title(const std::filesystem::path& folder);

// The folder, or an id's cached snapshot with *.safetensors, else InputError with hub_advice(). Other text is unchanged.
std::string weights_folder(const std::string& folder_or_id);

}  // namespace kvlab
