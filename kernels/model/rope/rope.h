#pragma once

#include <cstdint>

namespace kvlab {

// Rotary position embedding (Su et al. 2021) in place: x [tokens, heads, head_dim], heads = query + KV heads;
// cos and sin [tokens, head_dim / 2] each, read once per token.
struct RopeShape {
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const RopeShape& s) { return s.tokens * (2 * s.heads + 1) * s.head_dim * s.activation_bytes; }
// A 2 x 2 rotation of each pair of channels: four multiplies and two adds per two channels.
constexpr std::int64_t flops(const RopeShape& s) { return 3 * s.tokens * s.heads * s.head_dim; }

// float32, in place. Channel i is rotated with channel i + head_dim / 2, the layout of Llama checkpoints in Hugging Face form.
struct Rope {
  float* x = nullptr;          // [tokens, heads, head_dim]
  const float* cos = nullptr;  // [tokens, head_dim / 2]
  const float* sin = nullptr;  // [tokens, head_dim / 2]
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
};

constexpr RopeShape shape(const Rope& a) { return {a.tokens, a.heads, a.head_dim, 4}; }
void run_cpu(const Rope& a);

}  // namespace kvlab
