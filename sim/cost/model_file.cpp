#include "sim/cost/model_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/hugging_face.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/model_families.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

// Shipped file with a known id of which `is` is true, or "".
template <class Is>
std::string listed_name(const std::string& models_folder, Is&& is) {
  const fs::path table = fs::path(models_folder).parent_path() / "hugging_face.yaml";
  std::error_code error;
  if (!fs::exists(table, error)) return "";
  const std::shared_ptr<const ConfigFile> config = shared_config(table.string());
  for (const auto& model : config->root)
    for (const auto& known : model.second)
      if (is(known.Scalar())) return model.first.Scalar();
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

std::string text_of(const YAML::Node& map, const char* key) {
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

bool is_null(const YAML::Node& map, const char* key) {
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsNull();
}

// `inner`, completed by `outer` without multimodal keys.
YAML::Node merged(const YAML::Node& outer, const YAML::Node& inner) {
  YAML::Node all(YAML::NodeType::Map);
  for (const auto& item : inner) all.force_insert(item.first, item.second);
  for (const auto& item : outer) {
    const std::string& key = item.first.Scalar();
    if (inner[key].IsDefined() || is_multimodal_key(key)) continue;
    all.force_insert(item.first, item.second);
  }
  return all;
}

// quantized_layers may list tens of thousands of modules: {scheme: [modules]} in one pass.
void group_quantized_layers(YAML::Node q) {
  if (!q.IsDefined() || !q.IsMap()) return;
  if (const YAML::Node inner = q["quantization"]; inner.IsDefined()) group_quantized_layers(inner);
  const YAML::Node layers = q["quantized_layers"];
  if (!layers.IsDefined() || !layers.IsMap()) return;
  std::map<std::string, YAML::Node> names;
  for (const auto& layer : layers) {
    const auto [at, is_new] = names.try_emplace(text_of(layer.second, "quant_algo"), YAML::NodeType::Sequence);
    at->second.push_back(layer.first);
  }
  YAML::Node grouped(YAML::NodeType::Map);
  for (const auto& [algorithm, modules] : names) grouped[algorithm] = modules;
  q["quantized_layers"] = grouped;
}

std::shared_ptr<const ConfigFile> find_quantization(const std::filesystem::path& file) {
  for (const auto& [sibling, method] : quantization_files(file)) {
    if (!is_file(sibling)) continue;
    const std::shared_ptr<const ConfigFile> whole = load_config(sibling.string());
    group_quantized_layers(whole->root);
    const std::shared_ptr<const ConfigFile> read = without_nulls(*whole);
    if (read->root["quant_method"].IsDefined()) return read;
    auto named = std::make_shared<ConfigFile>(*read);
    named->root.reset(merged(YAML::Load("{quant_method: " + method + "}"), read->root));
    return named;
  }
  return nullptr;
}

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

std::shared_ptr<const ConfigFile> schemes() {
  static const std::shared_ptr<const ConfigFile> file = load_config(profiles_folder() + "/quantization.yaml");
  return file;
}

WeightScheme scheme_of(const YAML::Node& name, const YAML::Node& entry) {
  YAML::Emitter config;
  config << YAML::Flow << entry["config"];
  return {name.Scalar(), entry["means"].Scalar(), config.c_str()};
}

bool lists(const YAML::Node& list, const std::string& name) {
  return list.IsDefined() && std::any_of(list.begin(), list.end(), [&](const YAML::Node& item) { return item.Scalar() == name; });
}

}  // namespace

std::vector<std::pair<fs::path, std::string>> quantization_files(const fs::path& model_file) {
  if (model_file.filename() != "config.json") return {};
  const fs::path folder = model_file.parent_path();
  return {{folder / "hf_quant_config.json", "modelopt"}, {folder / "quantize_config.json", "gptq"}, {folder / "quant_config.json", "awq"}};
}

std::string shipped_model_of(const std::string& named, const std::string& models_folder) {
  const std::string last = lower_case(last_name(named));
  if (last.empty()) return "";
  const auto is_last = [&](const std::string& known) { return lower_case(last_name(known)) == last; };
  if (std::string listed = listed_name(models_folder, is_last); !listed.empty()) return listed;
  for (const std::string& name : names_of(last))
    if (is_file(fs::path(models_folder) / (name + ".yaml"))) return name;
  return "";
}

FoundModel find_model_file(const std::string& name_or_path, const std::string& models_folder) {
  const fs::path own = fs::path(models_folder) / (name_or_path + ".yaml");
  const auto found = [&](const std::string& name, const std::string& remark = "") {
    return FoundModel{find_spec_file(name, models_folder, "model"), remark, ""};
  };
  if (!is_hub_id(name_or_path) || is_file(name_or_path) || is_file(own)) return found(name_or_path);
  const std::string &id = name_or_path, listed = listed_name(models_folder, [&](const std::string&known) { return known == id; });
  if (!listed.empty()) return found(listed, fmt::format("{} is {}.yaml of profiles/models", id, listed));
  if (const std::string snapshot = cached_snapshot(id); !snapshot.empty())
    return found(snapshot + "/config.json", fmt::format("{} is read from {}/config.json", id, snapshot));
  if (std::optional<FoundModel> quantized = find_quantized(id, models_folder)) return *quantized;
  for (const std::string& name : names_of(id))
    if (is_file(fs::path(models_folder) / (name + ".yaml")))
      return found(name, fmt::format("{} is taken for {}.yaml of profiles/models by its name: its own config.json may differ, and is used "
                                     "after 'hf download {} --include config.json'",
                                     id, name, id));
  return found(id);
}

void set_quantization(ModelFile& model, const std::string& name, const std::string& config, bool replaces) {
  const YAML::Node wanted = YAML::Load(config), own = model.config->root["quantization_config"];
  const bool has_own = own.IsDefined() || model.quantization != nullptr;
  if (has_own) {
    const YAML::Node there = own.IsDefined() ? own : model.quantization->root;
    const std::string method = text_of(there, "quant_method");
    if (method == wanted["quant_method"].Scalar()) return;
    if (!replaces)
      throw InputError(
          fmt::format("'quantization' = {}: the weights of {} are quantized already, by {}; leave the key out, or take the model's "
                      "file without a quantization_config",
                      name, model.config->name, method.empty() ? "a scheme of its own" : method));
  }
  auto with = std::make_shared<ConfigFile>(*model.config);
  YAML::Node copy(YAML::NodeType::Map);
  for (const auto& item : model.config->root)
    if (item.first.Scalar() != "quantization_config") copy.force_insert(item.first, item.second);
  with->root.reset(copy);
  with->root["quantization_config"] = wanted;
  model.config = with;
}

ModelFile load_model_file(const std::string& file) {
  const std::shared_ptr<const ConfigFile> read = load_config(file);
  const YAML::Node outer = read->root;
  ModelFile result;
  auto whole = std::make_shared<ConfigFile>(*read);
  const bool has_text = outer["text_config"].IsDefined() && outer["text_config"].IsMap();
  result.is_multimodal = has_text || outer["vision_config"].IsDefined();
  result.family = text_of(outer, "model_type");
  if (has_text) {
    const std::string named = text_of(outer["text_config"], "model_type");
    result.family = named.empty() ? text_family_of(result.family) : named;
    if (result.family.empty())
      throw InputError(place(read->name, outer["text_config"].Mark()) + ": text_config needs 'model_type', the family of the text model");
  }
  if (result.is_multimodal) whole->root.reset(merged(outer, has_text ? outer["text_config"] : YAML::Node(YAML::NodeType::Map)));
  result.has_null_kv_heads = is_null(whole->root, "num_key_value_heads");
  result.has_null_window = is_null(whole->root, "sliding_window");
  result.has_null_q_rank = is_null(whole->root, "q_lora_rank");
  group_quantized_layers(whole->root["quantization_config"]);
  result.config = without_nulls(*whole);
  if (!result.config->root["quantization_config"].IsDefined()) result.quantization = find_quantization(file);
  return result;
}

WeightScheme find_weight_scheme(const std::string& name) {
  std::vector<std::string> known{"none"};
  for (const auto& entry : schemes()->root) {
    if (entry.first.Scalar() == name || lists(entry.second["also"], name)) return scheme_of(entry.first, entry.second);
    known.push_back(entry.first.Scalar());
  }
  throw InputError(fmt::format("'quantization': unknown format '{}'{}; known: {}", name, suggestion(name, known), join(known, ", ")));
}

std::optional<QuantizedName> split_quantized_name(const std::string& name) {
  const std::string lower = lower_case(name);
  std::optional<QuantizedName> found;
  for (const auto& entry : schemes()->root)
    for (const YAML::Node& ending : entry.second["ids"]) {
      const std::size_t kept = name.size() - std::min(name.size(), ending.Scalar().size());
      if (kept == 0 || !lower.ends_with(ending.Scalar()) || (found && found->base.size() <= kept)) continue;
      found = QuantizedName{name.substr(0, kept), scheme_of(entry.first, entry.second)};
    }
  return found;
}

}  // namespace kvlab
