#pragma once

#include <cstdint>

namespace kvlab {

// out = act(gate) * up, or act(in) without a gate.
struct SiluMulShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
  bool gated = true;
};

constexpr std::int64_t bytes(const SiluMulShape& s) { return (s.gated ? 3 : 2) * s.tokens * s.width * s.activation_bytes; }
constexpr std::int64_t flops(const SiluMulShape& s) { return (s.gated ? 4 : 3) * s.tokens * s.width; }

// out = gate * sigmoid(gate) * up in float32.
struct SiluMul {
  const float* gate = nullptr;  // [tokens, width]
  const float* up = nullptr;    // [tokens, width]
  float* out = nullptr;         // [tokens, width]; may be `gate` or `up`
  std::int64_t tokens = 0, width = 0;
};

constexpr SiluMulShape shape(const SiluMul& a) { return {a.tokens, a.width, 4, true}; }
void run_cpu(const SiluMul& a);

}  // namespace kvlab
