#pragma once

#include <cstdint>

namespace kvlab {

// Rotary position embedding (Su et al. 2021).
struct RopeShape {
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const RopeShape& s) { return s.tokens * (2 * s.heads + 1) * s.head_dim * s.activation_bytes; }
constexpr std::int64_t flops(const RopeShape& s) { return 3 * s.tokens * s.heads * s.head_dim; }

// In place. Channel i is rotated with i + head_dim / 2, as in Hugging Face's Llama.
struct Rope {
  float* x = nullptr;          // [tokens, heads, head_dim]
  const float* cos = nullptr;  // [tokens, head_dim / 2]
  const float* sin = nullptr;  // [tokens, head_dim / 2]
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
};

constexpr RopeShape shape(const Rope& a) { return {a.tokens, a.heads, a.head_dim, 4}; }
void run_cpu(const Rope& a);

}  // namespace kvlab
