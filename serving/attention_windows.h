#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// Default of an absent 'num_key_value_heads', by the family's configuration class in Hugging Face transformers. null means one per query
// head.
inline std::int64_t default_kv_heads(std::string_view family, std::int64_t q_heads) {
  if (family == "mistral") return 8;
  return family == "qwen2" || family == "qwen3" ? 32 : q_heads;
}

// The maximum text length in tokens by config.json. original: 'original_max_position_embeddings'; 0: absent. 'max_position_embeddings' is
// before scaling for "dynamic", after it for "llama3" and others. "linear" and "yarn" have both; without `original` the longer reading
// counts, as in vLLM.
std::int64_t longest_text(std::string_view rope_type, double factor, std::int64_t original, std::int64_t max_positions);

// Sliding-window keys of config.json.
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
