#pragma once

#include <cstdint>

namespace kvlab {

// `tokens` per (layer, KV head): K and V [head_dim] are read and written once, with an int32 source position each.
struct CompactShape {
  std::int64_t tokens = 0;
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  std::int64_t kv_bytes = 2;  // per element
};

constexpr std::int64_t bytes(const CompactShape& s) { return s.tokens * s.layers * s.kv_heads * (4 * s.head_dim * s.kv_bytes + 4); }
constexpr std::int64_t flops(const CompactShape&) { return 0; }

}  // namespace kvlab
