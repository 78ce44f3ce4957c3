#include "engine/model/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "engine/model/json_config.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Pickled PyTorch weights can run code when read.
void refuse_folder(const fs::path& dir) {
  const bool pickled = is_there(dir / "pytorch_model.bin") || is_there(dir / "pytorch_model.bin.index.json");
  throw InputError(fmt::format("{}: has neither {} nor {}{}", dir.string(), kSingleFile, kIndexFile,
                               pickled ? "; pytorch_model.bin is not read, convert it to safetensors" : ""));
}

std::map<std::string, std::string> read_weight_map(const JsonConfig& index) {
  const JsonConfig map = index.object("weight_map");
  std::map<std::string, std::string> places;
  for (const auto& [tensor, shard] : map.json().items()) {
    const std::string name = map.text(tensor);
    if (name.empty() || fs::path(name).filename() != name) map.refuse(tensor, "the name of a file in the same folder");
    places[tensor] = name;
  }
  if (places.empty()) index.fail("'weight_map' names no tensor");
  return places;
}

}  // namespace

bool is_rope_buffer(const std::string& tensor) { return tensor.ends_with("rotary_emb.inv_freq"); }

WeightFiles::WeightFiles(const std::string& dir) {
  const fs::path folder(dir);
  if (!is_there(folder / kSingleFile)) {
    if (!is_there(folder / kIndexFile)) refuse_folder(folder);
    open_shards(dir);
    return;
  }
  name_ = (folder / kSingleFile).string();
  const SafetensorsFile& file = files_.emplace(kSingleFile, SafetensorsFile::open(name_)).first->second;
  for (const auto& [tensor, info] : file.tensors()) places_[tensor] = kSingleFile;
}

void WeightFiles::open_shards(const std::string& dir) {
  const fs::path folder(dir);
  name_ = (folder / kIndexFile).string();
  places_ = read_weight_map(JsonConfig(name_));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : places_) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards)
    if (!is_there(folder / shard)) missing.push_back(shard);
  if (!missing.empty()) fail(fmt::format("{} of {} shards are missing: {}", missing.size(), shards.size(), join(missing, ", ")));
  for (const std::string& shard : shards) files_.emplace(shard, SafetensorsFile::open((folder / shard).string()));
  for (const auto& [shard, file] : files_) {
    for (const auto& [tensor, info] : file.tensors()) {
      const auto place = places_.find(tensor);
      if (place == places_.end()) file.fail("tensor '" + tensor + "' is not in " + kIndexFile);
      if (place->second != shard) file.fail(fmt::format("tensor '{}' belongs into {} by {}", tensor, place->second, kIndexFile));
    }
  }
  std::erase_if(places_, [&](const auto& place) { return is_rope_buffer(place.first) && !files_.at(place.second).has(place.first); });
  for (const auto& [tensor, shard] : places_)
    if (!files_.at(shard).has(tensor)) fail(fmt::format("'weight_map' places tensor '{}' in {}, which does not have it", tensor, shard));
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : places_) names.push_back(tensor);
  return names;
}

void WeightFiles::fail(const std::string& message) const { throw InputError(name_ + ": " + message); }

}  // namespace kvlab
