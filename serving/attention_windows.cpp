#include "serving/attention_windows.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace kvlab {

namespace {

// For absent keys, by configuration class.
struct Defaults {
  std::int64_t window = 0;       // 0: none
  bool has_switch = true;        // uses use_sliding_window
  bool is_on = true;             // default of use_sliding_window
  bool has_first_layer = false;  // uses max_window_layers, default 28
  std::int64_t full_every = 0;   // distance between full-attention layers; 0: none
};

Defaults defaults_of(const std::string& model_type) {
  if (model_type.starts_with("qwen2") || model_type.starts_with("qwen3")) return {4096, true, false, true, 0};
  static const std::map<std::string_view, Defaults> families{
      {"mistral", {4096, false, true, false, 0}},     {"ministral", {4096, false, true, false, 0}},
      {"olmo3", {4096, false, true, false, 4}},       {"exaone4", {4096, false, true, false, 4}},
      {"smollm3", {0, true, false, false, 0}},        {"gemma2", {4096, false, true, false, 2}},
      {"gemma3_text", {4096, false, true, false, 6}}, {"cohere2", {4096, false, true, false, 4}},
      {"gpt_oss", {128, false, true, false, 2}}};
  const auto found = families.find(model_type);
  return found == families.end() ? Defaults{} : found->second;
}

}  // namespace

std::int64_t longest_text(std::string_view rope_type, double factor, std::int64_t original, std::int64_t max_positions) {
  constexpr double kMost = 1 << 28;
  if (rope_type != "linear" && rope_type != "dynamic" && rope_type != "yarn") return max_positions;
  const std::int64_t from = original > 0 ? original : max_positions;
  return std::max(max_positions, static_cast<std::int64_t>(std::min(std::floor(factor * static_cast<double>(from)), kMost)));
}

std::vector<std::int64_t> attention_windows(const WindowKeys& keys) {
  const Defaults d = defaults_of(keys.model_type);
  const bool in_use = d.has_switch ? keys.use_sliding_window.value_or(d.is_on) : d.is_on;
  const std::int64_t window = in_use ? keys.sliding_window.value_or(d.window) : 0;
  if (window == 0) return {};
  const std::int64_t first = d.has_first_layer ? keys.max_window_layers.value_or(28) : 0,
                     every = keys.sliding_window_pattern.value_or(d.full_every);
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < keys.layers; ++layer) {
    const bool slides = keys.layer_types.empty() ? layer >= first && (every == 0 || (layer + 1) % every != 0)
                                                 : keys.layer_types.at(static_cast<std::size_t>(layer)) == "sliding_attention";
    windows.push_back(slides ? window : 0);
  }
  const bool any = std::any_of(windows.begin(), windows.end(), [](std::int64_t w) { return w > 0; });
  return any ? windows : std::vector<std::int64_t>{};
}

}  // namespace kvlab
