#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/rope/rope.h"

namespace kvlab {

// Rotates by the angle of position[t] less from_position[t]'s (moves cached keys); `inverse` undoes it. Pairs i, i + head_dim / 2; fp32,
// one rounding.
struct DeviceRope {
  const void* in = nullptr;                     // [tokens, heads, head_dim], in_stride apart
  void* out = nullptr;                          // out_stride apart; may be `in`
  const float* cos = nullptr;                   // [lines, head_dim / 2]
  const float* sin = nullptr;                   // [lines, head_dim / 2]
  const std::int32_t* position = nullptr;       // [tokens] table lines; null: t
  const std::int32_t* from_position = nullptr;  // [tokens] of the previous rotation; null: none
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t in_stride = 0, out_stride = 0;  // in elements; 0: heads * head_dim
  bool inverse = false;
  ElementType type = ElementType::kBf16;
};

constexpr RopeShape shape(const DeviceRope& a) { return {a.tokens, a.heads, a.head_dim, element_bytes(a.type)}; }
void run_cuda(const DeviceRope& a, CudaContext& cuda);

}  // namespace kvlab
