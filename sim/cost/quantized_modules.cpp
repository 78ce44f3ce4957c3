#include "sim/cost/quantized_modules.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

// Parts of a multimodal model that are not its text.
bool is_of_other_tower(const std::string& pattern) {
  for (const char* word : {"vision", "visual", "audio", "multi_modal_projector", "encoder.", "image", "mm_projector"})
    if (pattern.find(word) != std::string::npos) return true;
  return false;
}

std::string from_layers(const std::string& pattern) {
  const std::size_t at = pattern.find("layers.");
  return at == std::string::npos ? "" : pattern.substr(at);
}

// A star matches any text; a match may end where a module's name does.
std::string expression_of(const std::string& stars) {
  std::string text;
  for (const char c : stars) {
    if (c == '*') {
      text += ".*";
    } else {
      if (std::string_view(".^$|()[]{}+?\\").find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
  }
  return text + "(\\..*)?$";
}

std::regex compiled(const std::string& expression) {
  try {
    return std::regex(expression, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error&) {
    throw InputError("'" + expression + "' is not a regular expression");
  }
}

}  // namespace

ModulePatterns::ModulePatterns(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with("re:")) {
      expressions_.push_back(compiled(pattern.substr(3)));
    } else if (is_of_other_tower(pattern)) {
      continue;
    } else if (pattern.find('*') != std::string::npos) {
      const std::string layers = from_layers(pattern);
      expressions_.push_back(compiled(expression_of(layers.empty() || pattern.starts_with("*") ? pattern : "model." + layers)));
    } else if (const std::string layers = from_layers(pattern); !layers.empty()) {
      whole_.insert(layers.ends_with('.') ? layers.substr(0, layers.size() - 1) : layers);
    } else {
      parts_.push_back("." + pattern + ".");
    }
  }
}

bool ModulePatterns::matches(const std::string& module) const {
  for (std::size_t at = module.find('.'); !whole_.empty() && at != std::string::npos; at = module.find('.', at + 1))
    if (whole_.contains(module.substr(0, at))) return true;
  if (whole_.contains(module)) return true;
  const std::string dotted = "." + module + ".";
  if (std::any_of(parts_.begin(), parts_.end(), [&](const std::string& p) { return dotted.find(p) != std::string::npos; })) return true;
  return std::any_of(expressions_.begin(), expressions_.end(),
                     [&](const std::regex& e) { return std::regex_search("model." + module, e, std::regex_constants::match_continuous); });
}

namespace {

using Part = ModuleOfLayer::Part;

// The matrices of an MLP: the gate, where there is one, up and down.
void add_mlp(const ModelSpec& m, Part part, std::int64_t copies, std::int64_t width, const std::string& layer,
             const std::vector<std::string>& places, std::vector<ModuleOfLayer>& modules) {
  const auto add = [&](std::initializer_list<const char*> names) {
    ModuleOfLayer module{part, copies * m.hidden * width, {}};
    for (const std::string& place : places)
      for (const char* name : names) module.names.push_back(layer + place + name);
    modules.push_back(std::move(module));
  };
  if (m.gated_mlp) add({"gate_proj", "gate_up_proj", "w1"});
  add({"up_proj", "gate_up_proj", "w3"});
  add({"down_proj", "w2"});
}

std::vector<ModuleOfLayer> latent_modules(const ModelSpec& m, const std::string& at) {
  const LatentAttention& l = m.latent;
  const std::int64_t q_width = m.q_heads * (l.nope + l.rope);
  std::vector<ModuleOfLayer> modules{{Part::kAttention, m.hidden * l.cached(), {at + "kv_a_proj_with_mqa"}},
                                     {Part::kAttention, l.kv_rank * m.q_heads * (l.nope + l.value), {at + "kv_b_proj"}},
                                     {Part::kAttention, m.q_heads * l.value * m.hidden, {at + "o_proj"}}};
  if (l.q_rank == 0) {
    modules.push_back({Part::kAttention, m.hidden * q_width, {at + "q_proj"}});
  } else {
    modules.push_back({Part::kAttention, m.hidden * l.q_rank, {at + "q_a_proj"}});
    modules.push_back({Part::kAttention, l.q_rank * q_width, {at + "q_b_proj"}});
  }
  return modules;
}

std::vector<ModuleOfLayer> linear_modules(const ModelSpec& m, const std::string& layer) {
  const LinearAttention& l = m.linear;
  const std::string at = layer + "linear_attn.", other = layer + "self_attn.";
  const std::int64_t out = m.hidden * l.value_width();
  if (l.rule == LinearAttention::Rule::kDelta) {
    const std::int64_t rates = m.hidden * 2 * l.value_heads;
    return {{Part::kAttention, m.hidden * l.projected_width() - rates, {at + "in_proj_qkvz"}},
            {Part::kAttention, rates, {at + "in_proj_ba"}},
            {Part::kAttention, out, {at + "out_proj"}}};
  }
  return {{Part::kAttention, m.hidden * (l.projected_width() - l.value_width()), {other + "qkv_proj"}},
          {Part::kAttention, out, {other + "output_gate"}},
          {Part::kAttention, out, {other + "out_proj"}}};
}

std::vector<ModuleOfLayer> attention_modules(const ModelSpec& m, AttentionKind kind, const std::string& layer) {
  const std::string at = layer + "self_attn.";
  if (kind == AttentionKind::kLatent) return latent_modules(m, at);
  if (kind == AttentionKind::kLinear) return linear_modules(m, layer);
  const std::int64_t out = m.hidden * m.q_heads * m.head_dim, kv = m.hidden * m.kv_heads * m.head_dim;
  return {{Part::kAttention, m.attention_gate ? 2 * out : out, {at + "q_proj", at + "qkv_proj"}},
          {Part::kAttention, kv, {at + "k_proj", at + "qkv_proj"}},
          {Part::kAttention, kv, {at + "v_proj", at + "qkv_proj"}},
          {Part::kAttention, out, {at + "o_proj", at + "out_proj"}}};
}

}  // namespace

std::vector<ModuleOfLayer> modules_of_layer(const ModelSpec& m, std::int64_t layer) {
  const std::string at = "layers." + std::to_string(layer) + ".";
  std::vector<ModuleOfLayer> modules = attention_modules(m, class_of_layer(m, layer).attention, at);
  if (!m.has_experts(layer)) {
    add_mlp(m, Part::kMlp, 1, m.intermediate, at, {"mlp.", "feed_forward."}, modules);
    return modules;
  }
  add_mlp(m, Part::kExperts, m.experts, m.moe_intermediate, at,
          {"mlp.experts.0.", "mlp.experts.", "block_sparse_moe.experts.0.", "feed_forward.experts.0.", "feed_forward.experts."}, modules);
  if (m.shared_intermediate > 0)
    add_mlp(m, Part::kMlp, 1, m.shared_intermediate, at, {"mlp.shared_expert.", "mlp.shared_experts.", "feed_forward.shared_expert."},
            modules);
  return modules;
}

}  // namespace kvlab
