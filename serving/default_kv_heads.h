#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// Default of an absent 'num_key_value_heads', by the family's configuration class in Hugging Face transformers. null means one per query
// head.
inline std::int64_t default_kv_heads(std::string_view family, std::int64_t q_heads) {
  if (family == "mistral") return 8;
  return family == "qwen2" || family == "qwen3" ? 32 : q_heads;
}

}  // namespace kvlab
