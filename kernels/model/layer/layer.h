#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

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

// y = x w^T (+ bias), sums in fp32; f32 is not tf32. On the CPU all is kF32. On a GPU by cuBLASLt.
struct Linear {
  const void* x = nullptr;     // [tokens, in_dim]
  const void* w = nullptr;     // [out_dim, in_dim]
  void* y = nullptr;           // [tokens, out_dim]; overlaps neither x nor w
  const void* bias = nullptr;  // [out_dim]; may be null
  std::int64_t tokens = 0, in_dim = 0, out_dim = 0;
  ElementType type = ElementType::kF32;
  bool y_is_f32 = false;  // without a bias: logits
};

constexpr LinearShape shape(const Linear& a) {
  return {a.tokens, a.out_dim, a.in_dim, element_bytes(a.type), 8.0 * static_cast<double>(element_bytes(a.type))};
}
void run_cpu(const Linear& a);
void run_cuda(const Linear& a, CudaContext& cuda);

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
  std::span<const std::int32_t> pieces = {};  // tokens of each, bit for bit as in a call for them; empty: one piece
};
void run_cpu(const LinearGroup& a);

// y = x r per row. r_step 0: the same r.
struct DeviceProject {
  const void* x = nullptr;  // [tokens, dim] at b * x_step for row b
  const void* r = nullptr;  // [dim, rank] at b * r_step
  void* y = nullptr;        // [tokens, rank] at b * y_step
  std::int64_t rows = 0, tokens = 0, dim = 0, rank = 0;
  std::int64_t x_step = 0, r_step = 0, y_step = 0;
  ElementType type = ElementType::kBf16;
};

// For one row.
constexpr LinearShape shape(const DeviceProject& a) {
  return {a.tokens, a.rank, a.dim, element_bytes(a.type), 8.0 * static_cast<double>(element_bytes(a.type))};
}
void run_cuda(const DeviceProject& a, CudaContext& cuda);

// out[t, :] = table[id[t], :]; table [vocabulary, width].
struct EmbeddingShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const EmbeddingShape& s) { return s.tokens * (2 * s.width * s.activation_bytes + 4); }
constexpr std::int64_t flops(const EmbeddingShape&) { return 0; }

// Ids must be in [0, vocabulary).
struct Embedding {
  const std::int32_t* ids = nullptr;  // [tokens]
  const void* table = nullptr;        // [vocabulary, width]
  void* out = nullptr;                // [tokens, width]
  std::int64_t tokens = 0, width = 0;
  ElementType type = ElementType::kF32;  // on the CPU kF32
};

constexpr EmbeddingShape shape(const Embedding& a) { return {a.tokens, a.width, element_bytes(a.type)}; }
void run_cpu(const Embedding& a);
void run_cuda(const Embedding& a, CudaContext& cuda);

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

// Sums in fp32. The residual is rounded to `type` before it is normalised; null: normalises `in`, writes nothing back.
struct RmsNorm {
  const void* in = nullptr;      // [tokens, width]; on a GPU vectorized if aligned to 16 bytes and width % 8 == 0
  void* residual = nullptr;      // [tokens, width]; may be null
  const void* weight = nullptr;  // [width]
  void* out = nullptr;           // [tokens, width]; may be `in`
  std::int64_t tokens = 0, width = 0;
  float epsilon = 1e-5F;
  ElementType type = ElementType::kF32;  // on the CPU kF32
};

constexpr RmsNormShape shape(const RmsNorm& a) { return {a.tokens, a.width, element_bytes(a.type), a.residual != nullptr}; }
void run_cpu(const RmsNorm& a);
void run_cuda(const RmsNorm& a, CudaContext& cuda);

// Rotary position embedding (Su et al. 2021).
struct RopeShape {
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t activation_bytes = 2;
};

constexpr std::int64_t bytes(const RopeShape& s) { return s.tokens * (2 * s.heads + 1) * s.head_dim * s.activation_bytes; }
constexpr std::int64_t flops(const RopeShape& s) { return 3 * s.tokens * s.heads * s.head_dim; }

// Rotates by the angle of position[t] less from_position[t]'s (moves cached keys); `inverse` undoes it. Pairs i, i + head_dim / 2, as in
// Hugging Face's Llama; fp32, one rounding. On the CPU kF32, in place, dense, by the table's line t.
struct Rope {
  const void* in = nullptr;                     // [tokens, heads, head_dim], in_stride apart
  void* out = nullptr;                          // out_stride apart; may be `in`
  const float* cos = nullptr;                   // [lines, head_dim / 2]
  const float* sin = nullptr;                   // [lines, head_dim / 2]
  const std::int32_t* position = nullptr;       // [tokens] table lines; null: t
  const std::int32_t* from_position = nullptr;  // [tokens] of the previous rotation; null: none
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t in_stride = 0, out_stride = 0;  // in elements; 0: heads * head_dim
  bool inverse = false;
  ElementType type = ElementType::kF32;
};

constexpr RopeShape shape(const Rope& a) { return {a.tokens, a.heads, a.head_dim, element_bytes(a.type)}; }
void run_cpu(const Rope& a);
void run_cuda(const Rope& a, CudaContext& cuda);

// out = act(gate) * up, or act(in) without a gate.
struct SiluMulShape {
  std::int64_t tokens = 0, width = 0;
  std::int64_t activation_bytes = 2;
  bool gated = true;
};

constexpr std::int64_t bytes(const SiluMulShape& s) { return (s.gated ? 3 : 2) * s.tokens * s.width * s.activation_bytes; }
constexpr std::int64_t flops(const SiluMulShape& s) { return (s.gated ? 4 : 3) * s.tokens * s.width; }

// out = gate * sigmoid(gate) * up in fp32. One array [tokens, 2 * width]: up = gate + width, in_stride = 2 * width. On the CPU kF32, dense,
// with `up`.
struct SiluMul {
  const void* gate = nullptr;  // [tokens, width]
  const void* up = nullptr;    // [tokens, width]; null: out = silu(gate)
  void* out = nullptr;         // [tokens, width], dense; may be a dense `gate` or `up`
  std::int64_t tokens = 0, width = 0;
  std::int64_t in_stride = 0;  // in elements; 0: width
  ElementType type = ElementType::kF32;
};

constexpr SiluMulShape shape(const SiluMul& a) { return {a.tokens, a.width, element_bytes(a.type), a.up != nullptr}; }
void run_cpu(const SiluMul& a);
void run_cuda(const SiluMul& a, CudaContext& cuda);

// Expert MLPs on one rank: the group's `tokens`, each to experts_per_token of `experts`, spread evenly over `ranks` GPUs. Matrices:
// [intermediate, hidden].
struct MoeExpertsShape {
  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  std::int64_t experts = 1, experts_per_token = 1, ranks = 1;
  std::int64_t activation_bytes = 2;
  double weight_bits = 16;  // with the share of the scales
  bool gated = true;
};

// For uniform choices: E * (1 - (1 - k / E)^T).
inline double expected_experts(const MoeExpertsShape& s) {
  const double e = static_cast<double>(s.experts);
  return e * (1.0 - std::pow(1.0 - static_cast<double>(s.experts_per_token) / e, static_cast<double>(s.tokens)));
}
// Mean (token, expert) pairs, rounded up.
constexpr std::int64_t pairs_per_rank(const MoeExpertsShape& s) { return ceil_div(s.tokens * s.experts_per_token, s.ranks); }
constexpr std::int64_t weights_per_expert(const MoeExpertsShape& s) { return (s.gated ? 3 : 2) * s.hidden * s.intermediate; }

inline std::int64_t bytes(const MoeExpertsShape& s) {
  const double weights =
      expected_experts(s) / static_cast<double>(s.ranks) * static_cast<double>(weights_per_expert(s)) * s.weight_bits / 8.0;
  return std::llround(weights) + 2 * pairs_per_rank(s) * (s.hidden + s.intermediate) * s.activation_bytes;
}
constexpr std::int64_t flops(const MoeExpertsShape& s) { return 2 * pairs_per_rank(s) * weights_per_expert(s); }

// Rounds to nearest even. `out` may be `in` if element widths and strides are equal.
struct DeviceConvert {
  const void* in = nullptr;  // [rows, width]
  void* out = nullptr;       // [rows, width]
  std::int64_t rows = 0, width = 0;
  std::int64_t in_stride = 0, out_stride = 0;  // in elements; 0: width
  ElementType in_type = ElementType::kBf16, out_type = ElementType::kF32;
};

constexpr std::int64_t bytes(const DeviceConvert& a) { return a.rows * a.width * (element_bytes(a.in_type) + element_bytes(a.out_type)); }
void run_cuda(const DeviceConvert& a, CudaContext& cuda);

// to[place[i]] = value[i], distinct places.
struct DeviceScatter {
  std::int32_t* to = nullptr;
  const std::int64_t* place = nullptr;  // [count], CPU memory
  const std::int32_t* value = nullptr;  // [count], CPU memory
  std::int64_t count = 0;
};
void run_cuda(const DeviceScatter& a, CudaContext& cuda);

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
