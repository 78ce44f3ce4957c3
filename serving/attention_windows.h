#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

// Sliding-window keys of config.json. The meaning of an absent key depends on model_type.
struct WindowKeys {
  std::string model_type;
  std::int64_t layers = 0;
  std::optional<std::int64_t> sliding_window = {};  // tokens; 0: null in the file, unlike an absent key
  std::optional<bool> use_sliding_window = {};
  std::optional<std::int64_t> max_window_layers = {};       // first layer with a window
  std::optional<std::int64_t> sliding_window_pattern = {};  // distance between full-attention layers
  std::vector<std::string> layer_types = {};                // [layers] such as "sliding_attention"; empty: no key
};

// [layers] tokens that a query sees, itself included; 0: all. Empty: no windows. Meaning and defaults follow the configuration classes of
// Hugging Face transformers.
std::vector<std::int64_t> attention_windows(const WindowKeys& keys);

}  // namespace kvlab
