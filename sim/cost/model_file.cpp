#include "sim/cost/model_file.h"

#include <filesystem>

#include "base/error.h"
#include "base/spec_file.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_keys.h"

namespace kvlab {

namespace {

std::string text_of(const YAML::Node& map, const char* key) {
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

bool is_null(const YAML::Node& map, const char* key) {
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsNull();
}

// The keys of `inner`, then those of `outer` that it lacks and that are not about pictures or sound.
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

// Checkpoints of ModelOpt, AutoGPTQ and AutoAWQ may have their scheme in a file of its own.
std::shared_ptr<const ConfigFile> find_quantization(const std::filesystem::path& file) {
  if (file.filename() != "config.json") return nullptr;
  for (const auto& [name, method] :
       {std::pair{"hf_quant_config.json", "modelopt"}, {"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}}) {
    std::error_code error;
    const std::filesystem::path sibling = file.parent_path() / name;
    if (!std::filesystem::is_regular_file(sibling, error)) continue;
    const std::shared_ptr<const ConfigFile> read = without_nulls(*load_config(sibling.string()));
    if (read->root["quant_method"].IsDefined()) return read;
    auto named = std::make_shared<ConfigFile>(*read);
    named->root.reset(merged(YAML::Load(std::string("{quant_method: ") + method + "}"), read->root));
    return named;
  }
  return nullptr;
}

}  // namespace

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
    result.family = named.empty() ? std::string(text_family_of(result.family)) : named;
    if (result.family.empty())
      throw InputError(place(read->name, outer["text_config"].Mark()) + ": text_config needs 'model_type', the family of the text model");
  }
  if (result.is_multimodal) whole->root.reset(merged(outer, has_text ? outer["text_config"] : YAML::Node(YAML::NodeType::Map)));
  result.has_null_kv_heads = is_null(whole->root, "num_key_value_heads");
  result.has_null_window = is_null(whole->root, "sliding_window");
  result.has_null_q_rank = is_null(whole->root, "q_lora_rank");
  result.config = without_nulls(*whole);
  if (!result.config->root["quantization_config"].IsDefined()) result.quantization = find_quantization(file);
  return result;
}

}  // namespace kvlab
