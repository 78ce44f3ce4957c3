#include "base/hugging_face.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path cache_folder() {
  if (const std::string hub = variable("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

constexpr const char* kPrefix = "models--";

bool has_config(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "config.json", error);
}

std::string main_commit(const fs::path& model) {
  std::string commit = read_if_there(model / "refs" / "main");
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
  return commit;
}

// Models for which terms must be accepted first.
bool is_gated(const std::string& id) {
  constexpr std::array kGated = {"meta-llama/", "google/gemma", "mistralai/"};
  return std::any_of(kGated.begin(), kGated.end(), [&](const char* begin) { return id.starts_with(begin); });
}

bool has_weights(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

}  // namespace

bool is_hub_id(const std::string& text) {
  const std::size_t slash = text.find('/');
  const bool is_id = slash != std::string::npos && slash > 0 && slash + 1 < text.size() && text.find('/', slash + 1) == std::string::npos &&
                     text.find_first_of(".~$") != 0 && !text.ends_with(".yaml") && !text.ends_with(".yml") && !text.ends_with(".json");
  std::error_code error;
  return is_id && !fs::exists(text.substr(0, slash), error);
}

std::string cached_snapshot(const std::string& id) {
  if (!is_hub_id(id)) return "";
  const std::size_t slash = id.find('/');
  const fs::path model = cache_folder() / (kPrefix + id.substr(0, slash) + "--" + id.substr(slash + 1));
  if (const std::string commit = main_commit(model); !commit.empty() && has_config(model / "snapshots" / commit))
    return (model / "snapshots" / commit).string();
  std::vector<std::string> snapshots;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model / "snapshots", error))
    if (has_config(entry.path())) snapshots.push_back(entry.path().string());
  return snapshots.empty() ? "" : *std::max_element(snapshots.begin(), snapshots.end());
}

std::string hub_advice(const std::string& id, bool needs_weights) {
  if (!is_hub_id(id)) return "";
  std::string text = "; for a model of Hugging Face type 'hf download " + id + (needs_weights ? "'" : " --include config.json'");
  if (is_gated(id)) text += ", after asking for access on https://huggingface.co/" + id + " and 'hf auth login'";
  return text;
}

std::string model_title(const fs::path& folder) {
  const fs::path path = fs::absolute(folder.empty() ? fs::path(".") : folder).lexically_normal();
  const fs::path own = path.has_filename() ? path : path.parent_path();
  const std::string cached = own.parent_path().parent_path().filename().string();
  const std::size_t name = cached.rfind("--");
  if (own.parent_path().filename() != "snapshots" || !cached.starts_with(kPrefix) || name < std::string(kPrefix).size())
    return own.filename().string();
  return cached.substr(name + 2);
}

std::string weights_folder(const std::string& folder_or_id) {
  std::error_code error;
  if (fs::is_directory(folder_or_id, error) || !is_hub_id(folder_or_id)) return folder_or_id;
  const std::string snapshot = cached_snapshot(folder_or_id);
  if (!snapshot.empty() && has_weights(snapshot)) return snapshot;
  throw InputError("no folder '" + folder_or_id + "'" +
                   (snapshot.empty() ? ", and nothing in the cache of Hugging Face" : ", and " + snapshot + " has no safetensors") +
                   hub_advice(folder_or_id, true));
}

}  // namespace kvlab
