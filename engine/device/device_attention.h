#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// Heads are contiguous; tokens are `stride` elements apart.
struct DeviceLayer {
  std::int64_t tokens = 0;
  ElementType type = ElementType::kBf16;  // of all arrays
  const void* hidden = nullptr;           // [tokens, hidden_dim] normed input, dense
  const void* q = nullptr;                // [tokens, q_heads, head_dim]
  const void* k = nullptr;                // [tokens, kv_heads, head_dim]
  const void* v = nullptr;
  std::int64_t q_stride = 0, kv_stride = 0;
};

// AttentionHost on a GPU, on the model's stream.
class DeviceAttentionHost {
 public:
  virtual ~DeviceAttentionHost() = default;
  // q and k before RoPE.
  virtual void before_rope(std::int32_t /*layer*/, const DeviceLayer& /*in*/) {}
  // q is dense; out [tokens, q_heads, head_dim] of in.type.
  virtual void attend(std::int32_t layer, const DeviceLayer& in, void* out) = 0;
};

}  // namespace kvlab
