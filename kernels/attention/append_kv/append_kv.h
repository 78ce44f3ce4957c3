#pragma once

#include <cstdint>

namespace kvlab {

// New K and V [tokens, kv_heads, head_dim] and int64 slot numbers.
struct AppendKvShape {
  std::int64_t tokens = 0, kv_heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2, kv_bytes = 2;  // per element, before and in the cache
};

constexpr std::int64_t bytes(const AppendKvShape& s) {
  return s.tokens * (2 * s.kv_heads * s.head_dim * (s.activation_bytes + s.kv_bytes) + 8);
}
constexpr std::int64_t flops(const AppendKvShape&) { return 0; }

}  // namespace kvlab
