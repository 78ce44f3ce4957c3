#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/rope/rope.h"

namespace kvlab {

// Rope on device memory. The angle of token t is that of line position[t] of the tables, less that of line from_position[t] where the
// token was rotated before: a key cached at one position is moved to another by the difference,
// cos(a - b) = cos a cos b + sin a sin b, sin(a - b) = sin a cos b - cos a sin b. With `inverse` the rotation is undone instead: keys as
// they were before RoPE. Channel i is rotated with channel i + head_dim / 2; arithmetic in fp32, one rounding at the end.
struct DeviceRope {
  const void* in = nullptr;                     // [tokens, heads, head_dim]; token t begins at element t * in_stride
  void* out = nullptr;                          // the same with out_stride; may be `in`
  const float* cos = nullptr;                   // [lines, head_dim / 2]
  const float* sin = nullptr;                   // [lines, head_dim / 2]
  const std::int32_t* position = nullptr;       // [tokens] lines of the tables; null: token t has line t
  const std::int32_t* from_position = nullptr;  // [tokens] where tokens were rotated before; null: nowhere
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::int64_t in_stride = 0, out_stride = 0;  // elements; 0: heads * head_dim
  bool inverse = false;
  ElementType type = ElementType::kBf16;
};

constexpr RopeShape shape(const DeviceRope& a) { return {a.tokens, a.heads, a.head_dim, element_bytes(a.type)}; }
void run_cuda(const DeviceRope& a, CudaContext& cuda);

}  // namespace kvlab
