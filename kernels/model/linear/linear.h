#pragma once

#include <cstdint>

namespace kvlab {

// out[m, n] = in[m, k] * weight[n, k]^T (+ bias).
struct LinearShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t activation_bytes = 2;  // per element
  double weight_bits = 16;            // with the share of the scales
};

// Every operand crosses HBM once.
constexpr std::int64_t weight_bytes(const LinearShape& s) {
  return static_cast<std::int64_t>(static_cast<double>(s.n * s.k) * s.weight_bits / 8);
}
constexpr std::int64_t bytes(const LinearShape& s) { return s.m == 0 ? 0 : s.m * (s.k + s.n) * s.activation_bytes + weight_bytes(s); }
constexpr std::int64_t flops(const LinearShape& s) { return 2 * s.m * s.n * s.k; }

// y = x w^T (+ bias) in float32.
struct Linear {
  const float* x = nullptr;  // [tokens, in_dim]
  const float* w = nullptr;  // [out_dim, in_dim]
  float* y = nullptr;        // [tokens, out_dim]; overlaps neither x nor w
  std::int64_t tokens = 0, in_dim = 0, out_dim = 0;
  const float* bias = nullptr;  // [out_dim]; may be null
};

constexpr LinearShape shape(const Linear& a) { return {a.tokens, a.out_dim, a.in_dim, 4, 32}; }
void run_cpu(const Linear& a);

// parts[i].y = x parts[i].w^T (+ bias).
struct LinearPart {
  const float* w = nullptr;  // [out_dim, in_dim]
  float* y = nullptr;        // [tokens, out_dim]
  std::int64_t out_dim = 0;
  const float* bias = nullptr;  // [out_dim]; may be null
};
struct LinearGroup {
  const float* x = nullptr;  // [tokens, in_dim]
  std::int64_t tokens = 0, in_dim = 0;
  const LinearPart* parts = nullptr;
  std::int32_t num_parts = 0;
};
void run_cpu(const LinearGroup& a);

}  // namespace kvlab
