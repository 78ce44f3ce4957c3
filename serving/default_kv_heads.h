#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// KV heads of a config.json that has no 'num_key_value_heads': the default of the family's configuration class in Hugging Face
// transformers. null in the file is not silence: it means one for each query head in all of them.
inline std::int64_t default_kv_heads(std::string_view family, std::int64_t q_heads) {
  if (family == "mistral") return 8;
  return family == "qwen2" || family == "qwen3" ? 32 : q_heads;
}

}  // namespace kvlab
