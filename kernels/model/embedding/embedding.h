#pragma once

#include <cstdint>

namespace kvlab {

// out[t, :] = table[id[t], :]; table [vocabulary, width].
struct EmbeddingShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const EmbeddingShape& s) { return s.tokens * (2 * s.width * s.activation_bytes + 4); }
constexpr std::int64_t flops(const EmbeddingShape&) { return 0; }

// float32. Ids must be in [0, vocabulary).
struct Embedding {
  const std::int32_t* ids = nullptr;  // [tokens]
  const float* table = nullptr;       // [vocabulary, width]
  float* out = nullptr;               // [tokens, width]
  std::int64_t tokens = 0, width = 0;
};

constexpr EmbeddingShape shape(const Embedding& a) { return {a.tokens, a.width, 4}; }
void run_cpu(const Embedding& a);

}  // namespace kvlab
