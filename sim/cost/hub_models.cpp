#include "sim/cost/hub_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/hugging_face.h"
#include "sim/cost/weight_scheme.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// Shipped file that has the id's config.json, or "".
std::string listed_name(const std::string& id, const fs::path& table) {
  std::error_code error;
  if (!fs::exists(table, error)) return "";
  const std::shared_ptr<const ConfigFile> config = load_config(table.string());
  for (const auto& model : config->root)
    for (const auto& known : model.second)
      if (known.Scalar() == id) return model.first.Scalar();
  return "";
}

// "meta-llama/Llama-3.1-8B-Instruct": llama-3.1-8b-instruct, llama-3.1-8b.
std::vector<std::string> names_of(const std::string& id) {
  std::string name = lower_case(id.substr(id.find('/') + 1));
  if (name.starts_with("meta-llama-")) name = name.substr(5);
  std::vector<std::string> names = {name};
  for (const std::string variant : {"-instruct", "-chat", "-it", "-hf", "-base"})
    if (name.ends_with(variant)) names.push_back(name.substr(0, name.size() - variant.size()));
  return names;
}

// Last part of a path, or NAME of "models--ORG--NAME" in it (the hub's cache).
std::string last_name(const std::string& path) {
  constexpr std::string_view kCached = "models--";
  std::string last;
  for (const fs::path& part : fs::path(path)) {
    const std::string text = part.string();
    if (text.starts_with(kCached)) return text.substr(text.rfind("--") + 2);
    if (!text.empty()) last = text;
  }
  return last;
}

}  // namespace

std::string shipped_model_of(const std::string& named, const std::string& models_folder) {
  const std::string last = lower_case(last_name(named));
  if (last.empty()) return "";
  const fs::path table = fs::path(models_folder).parent_path() / "hugging_face.yaml";
  std::error_code error;
  if (fs::exists(table, error)) {
    const std::shared_ptr<const ConfigFile> config = load_config(table.string());
    for (const auto& model : config->root)
      for (const auto& known : model.second)
        if (lower_case(last_name(known.Scalar())) == last) return model.first.Scalar();
  }
  for (const std::string& name : names_of(last))
    if (fs::is_regular_file(fs::path(models_folder) / (name + ".yaml"), error)) return name;
  return "";
}

namespace {

// "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": the shipped model with FP8 weights.
std::optional<FoundModel> find_quantized(const std::string& id, const std::string& models_folder) {
  const std::optional<QuantizedName> split = split_quantized_name(id);
  if (!split || split->base.ends_with('/')) return std::nullopt;
  const std::string name = shipped_model_of(split->base, models_folder);
  if (name.empty()) return std::nullopt;
  return FoundModel{find_spec_file(name, models_folder, "model"),
                    fmt::format("{} is taken for {}.yaml of profiles/models by its name, with weights in {}: {}; its own config.json may "
                                "differ, and is used after 'hf download {} --include config.json'",
                                id, name, split->scheme.name, split->scheme.means, id),
                    split->scheme.name};
}

}  // namespace

FoundModel find_model_file(const std::string& name_or_path, const std::string& models_folder) {
  std::error_code error;
  const fs::path own = fs::path(models_folder) / (name_or_path + ".yaml");
  if (!is_hub_id(name_or_path) || fs::is_regular_file(name_or_path, error) || fs::is_regular_file(own, error))
    return {find_spec_file(name_or_path, models_folder, "model"), "", ""};
  const std::string &id = name_or_path, listed = listed_name(id, fs::path(models_folder).parent_path() / "hugging_face.yaml");
  if (!listed.empty())
    return {find_spec_file(listed, models_folder, "model"), fmt::format("{} is {}.yaml of profiles/models", id, listed), ""};
  if (const std::string snapshot = cached_snapshot(id); !snapshot.empty())
    return {find_spec_file(snapshot + "/config.json", models_folder, "model"), fmt::format("{} is read from {}/config.json", id, snapshot),
            ""};
  if (std::optional<FoundModel> quantized = find_quantized(id, models_folder)) return *quantized;
  for (const std::string& name : names_of(id)) {
    if (!fs::is_regular_file(fs::path(models_folder) / (name + ".yaml"), error)) continue;
    return {find_spec_file(name, models_folder, "model"),
            fmt::format("{} is taken for {}.yaml of profiles/models by its name: its own config.json may differ, and is used after 'hf "
                        "download {} --include config.json'",
                        id, name, id),
            ""};
  }
  return {find_spec_file(id, models_folder, "model"), "", ""};
}

}  // namespace kvlab
