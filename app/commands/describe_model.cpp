#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "app/commands/describe.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/hugging_face.h"
#include "sim/cost/kv_layout.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

std::string format_text(const WeightFormat& format) {
  std::string text = fmt::format("{:.4g} bits", format.bits);
  for (std::size_t t = 0; t < kNumDtypes; ++t)
    if (format.share[t] > 0)
      text += fmt::format(", {}computed in {}", format.share[t] < 1 ? fmt::format("{:.0f} % ", 100 * format.share[t]) : "",
                          dtype_name(static_cast<Dtype>(t)));
  return text;
}

std::string attention_text(const ModelSpec& m, const AttentionClass& layers) {
  switch (layers.kind) {
    case AttentionKind::kWindow:
      return fmt::format("attention to {} tokens", layers.window);
    case AttentionKind::kLatent:
      return fmt::format("latent attention, {} + {} values per token", m.latent.kv_rank, m.latent.rope);
    case AttentionKind::kLinear:
      return fmt::format("linear attention, a state of {} values", m.linear.state_values());
    default:
      return "full attention";
  }
}

std::string layers_text(const ModelSpec& m) {
  const std::int64_t routed = m.num_expert_layers(), dense = m.layers - routed;
  std::string text;
  for (const AttentionClass& layers : attention_classes(m))
    text += fmt::format("{}{} with {}", text.empty() ? "" : ", ", layers.count, attention_text(m, layers));
  if (dense > 0) text += fmt::format("; {} with a dense MLP of {}", dense, m.intermediate);
  if (routed > 0)
    text += fmt::format("; {} with {} experts of {}, {} per token", routed, m.experts, m.moe_intermediate, m.experts_per_token);
  if (routed > 0 && m.shared_intermediate > 0) text += fmt::format(", and a shared one of {}", m.shared_intermediate);
  return text;
}

// If its bytes are not linear in its length.
void add_long_sequence(const ModelSpec& m, Item& item) {
  constexpr std::int64_t kTokens = 32'768, kBlock = 16;
  const KvLayout layout = kv_layout(m, Parallel{}, kBlock);
  if (layout.is_one_group()) return;
  const auto bytes = static_cast<double>(sequence_bytes(layout, kBlock, kTokens - 1, 1));
  item.facts.emplace_back("KV groups", fmt::format("{} of {} layers: {} full, {} with a window, {} with a state", layout.groups(),
                                                   layout.group_layers, layout.full_groups, layout.window_groups, layout.state_groups));
  item.facts.emplace_back("KV of 32768 tokens", fmt::format("{:.3f} GB, of {:.3f} without windows and states", bytes * 1e-9,
                                                            static_cast<double>(kTokens * kv_bytes_per_token(m)) * 1e-9));
}

void add_facts(const ModelSpec& m, Item& item) {
  const auto weights = static_cast<double>(weight_bytes(m));
  std::string parameters = fmt::format("{:.3f} B", static_cast<double>(total_parameters(m)) * 1e-9);
  if (m.is_moe()) parameters += fmt::format(", {:.3f} B of them used by a token", static_cast<double>(active_parameters(m)) * 1e-9);
  item.facts.emplace_back("parameters", parameters);
  item.facts.emplace_back("weights", fmt::format("{:.2f} GB ({:.2f} GiB){}", weights * 1e-9, weights / (1 << 30),
                                                 m.quantization.empty() ? "" : ", quantized by " + m.quantization));
  item.facts.emplace_back("KV bytes per token", fmt::format("{} in {}", kv_bytes_per_token(m), dtype_name(m.kv_dtype)));
  add_long_sequence(m, item);
  item.facts.emplace_back("layers", layers_text(m));
  item.facts.emplace_back("longest text", m.max_tokens > 0 ? fmt::format("{} tokens", m.max_tokens) : "not known");
  if (!m.quantization.empty()) {
    item.facts.emplace_back("weights of attention", format_text(m.attention_weights));
    if (m.num_expert_layers() < m.layers || m.shared_intermediate > 0)
      item.facts.emplace_back("weights of MLPs", format_text(m.mlp_weights));
    if (m.is_moe()) item.facts.emplace_back("weights of experts", format_text(m.expert_weights));
  }
  for (const std::string& remark : m.remarks) item.facts.emplace_back("remark", remark);
}

Item item_of(const ModelSpec& m, const std::string& name) {
  Item item{
      "models",
      name,
      fmt::format("{}: {:.1f} B parameters, {} layers, {} query and {} KV heads of {}, {} KV bytes per token", m.family,
                  static_cast<double>(total_parameters(m)) * 1e-9, m.layers, m.q_heads, m.kv_heads, m.head_dim, kv_bytes_per_token(m)),
      m.file,
      {}};
  add_facts(m, item);
  return item;
}

}  // namespace

std::vector<Item> model_items(const std::string& folder, const std::string& only) {
  std::vector<Item> items;
  for (const fs::path& file : yaml_files(folder)) {
    const std::string name = file.stem().string();
    if (!only.empty() && name != only) continue;
    try {
      items.push_back(item_of(load_model_spec(file.string(), folder), name));
    } catch (const InputError& e) {
      items.push_back({"models", name, std::string("cannot be used: ") + e.what(), file.string(), {}});
    }
  }
  return items;
}

bool is_model_path(const std::string& name) {
  std::error_code error;
  const fs::path path(name);
  if (path.extension() == ".json" || is_hub_id(name)) return true;
  if (fs::is_directory(path, error)) return fs::exists(path / "config.json", error);
  if (!fs::is_regular_file(path, error) || (path.extension() != ".yaml" && path.extension() != ".yml")) return false;
  const YAML::Node root = load_config(name)->root;
  return root["model_type"].IsDefined() || root["hidden_size"].IsDefined();
}

Item model_at_path(const std::string& path) {
  const ModelSpec m = load_model_spec(path, profiles_folder() + "/models");
  return item_of(m, m.name);
}

}  // namespace kvlab
