#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

// What a model's config.json says of sliding windows. A key that is not there means what its model_type makes of that.
struct WindowKeys {
  std::string model_type;
  std::int64_t layers = 0;
  std::optional<std::int64_t> sliding_window = {};  // tokens; 0: null in the file, which is not the same as no key
  std::optional<bool> use_sliding_window = {};
  std::optional<std::int64_t> max_window_layers = {};       // the first layer with a window
  std::optional<std::int64_t> sliding_window_pattern = {};  // every so many layers one sees all
  std::vector<std::string> layer_types = {};                // [layers] "sliding_attention" or another; empty: no key
};

// Of each layer how many tokens a query sees, itself included, 0: all; or empty: no layer has a window. As Hugging Face transformers reads
// these keys, with the defaults of its configuration classes. The engine computes by it and the cost model prices by it.
std::vector<std::int64_t> attention_windows(const WindowKeys& keys);

}  // namespace kvlab
