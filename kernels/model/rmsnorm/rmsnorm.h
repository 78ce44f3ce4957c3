#pragma once

#include <cstdint>

namespace kvlab {

// (in + residual) over its root mean square, times weight; the sum is the next residual.
struct RmsNormShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
  bool adds_residual = true;
};

constexpr std::int64_t bytes(const RmsNormShape& s) {
  const std::int64_t passes = s.adds_residual ? 4 : 2;  // in, out; residual read and written
  return s.tokens == 0 ? 0 : (passes * s.tokens + 1) * s.width * s.activation_bytes;
}
constexpr std::int64_t flops(const RmsNormShape& s) { return (s.adds_residual ? 5 : 4) * s.tokens * s.width; }

// float32; residual null: normalises `in`, writes nothing back.
struct RmsNorm {
  const float* in = nullptr;      // [tokens, width]
  float* residual = nullptr;      // [tokens, width]
  const float* weight = nullptr;  // [width]
  float* out = nullptr;           // [tokens, width]; may be `in`
  std::int64_t tokens = 0, width = 0;
  float epsilon = 1e-5F;
};

constexpr RmsNormShape shape(const RmsNorm& a) { return {a.tokens, a.width, 4, a.residual != nullptr}; }
void run_cpu(const RmsNorm& a);

}  // namespace kvlab
