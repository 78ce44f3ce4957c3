#pragma once

#include <cstdint>

namespace kvlab {

// Gradients of a decoder layer's inputs, CPU, float32.

// For y = x w^T: dx += dy w.
struct LinearGradient {
  const float* dy = nullptr;  // [tokens, out_dim]
  const float* w = nullptr;   // [out_dim, in_dim]
  float* dx = nullptr;        // [tokens, in_dim]
  std::int64_t tokens = 0, in_dim = 0, out_dim = 0;
};
void run_cpu(const LinearGradient& a);

// For y = x weight / r, r = sqrt(mean(x^2) + epsilon): dx += weight dy / r - x sum(weight dy x) / (width r^3).
struct RmsNormGradient {
  const float* x = nullptr;       // [tokens, width]
  const float* weight = nullptr;  // [width]
  const float* dy = nullptr;      // as x
  float* dx = nullptr;            // as x
  std::int64_t tokens = 0, width = 0;
  float epsilon = 1e-5F;
};
void run_cpu(const RmsNormGradient& a);

// y = gate sigmoid(gate) up: gradients replace gate and up.
struct SiluMulGradient {
  const float* dy = nullptr;  // [tokens, width]
  float* gate = nullptr;      // as dy
  float* up = nullptr;        // as dy
  std::int64_t tokens = 0, width = 0;
};
void run_cpu(const SiluMulGradient& a);

}  // namespace kvlab
