#pragma once

#include <cstdint>

namespace kvlab {

// out[t, :] = table[id[t], :]; table [vocabulary, width], id int32.
struct EmbeddingShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const EmbeddingShape& s) { return s.tokens * (2 * s.width * s.activation_bytes + 4); }
constexpr std::int64_t flops(const EmbeddingShape&) { return 0; }

}  // namespace kvlab
