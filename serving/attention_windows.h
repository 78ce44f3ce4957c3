#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

// The keys of a model's config.json on sliding windows. The meaning of an absent key depends on the model_type.
struct WindowKeys {
  std::string model_type;
  std::int64_t layers = 0;
  std::optional<std::int64_t> sliding_window = {};  // tokens; 0: null in the file, which is not the same as no key
  std::optional<bool> use_sliding_window = {};
  std::optional<std::int64_t> max_window_layers = {};       // the first layer with a window
  std::optional<std::int64_t> sliding_window_pattern = {};  // distance between layers that see all tokens
  std::vector<std::string> layer_types = {};                // [layers] "sliding_attention" or another; empty: no key
};

// [layers] the number of tokens that a query sees, itself included; 0: all. Empty: no layer has a window. The keys have the meaning and the
// defaults of the configuration classes of Hugging Face transformers. The engine and the cost model both use these windows.
std::vector<std::int64_t> attention_windows(const WindowKeys& keys);

}  // namespace kvlab
