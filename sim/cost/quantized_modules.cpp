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

}  // namespace

std::vector<ModuleOfLayer> modules_of_layer(const ModelSpec& m, std::int64_t layer) {
  const std::string at = "layers." + std::to_string(layer) + ".", attention = at + "self_attn.";
  const std::int64_t q = m.hidden * m.q_heads * m.head_dim, kv = m.hidden * m.kv_heads * m.head_dim;
  std::vector<ModuleOfLayer> modules{{Part::kAttention, q, {attention + "q_proj", attention + "qkv_proj"}},
                                     {Part::kAttention, kv, {attention + "k_proj", attention + "qkv_proj"}},
                                     {Part::kAttention, kv, {attention + "v_proj", attention + "qkv_proj"}},
                                     {Part::kAttention, q, {attention + "o_proj", attention + "out_proj"}}};
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
