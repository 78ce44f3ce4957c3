#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kvlab {

// The inputs of an attention layer in a pass, in device memory. A token's vectors are stored one head after another; tokens are `stride`
// elements apart.
struct DeviceLayer {
  std::int64_t tokens = 0;
  ElementType type = ElementType::kBf16;  // of all arrays
  const void* hidden = nullptr;           // [tokens, hidden_dim] normed input, dense
  const void* q = nullptr;                // [tokens, q_heads, head_dim]
  const void* k = nullptr;                // [tokens, kv_heads, head_dim]
  const void* v = nullptr;
  std::int64_t q_stride = 0, kv_stride = 0;
};

// AttentionHost (engine/model/transformer.h) for a model on a GPU. Its launches run on the model's stream.
class DeviceAttentionHost {
 public:
  virtual ~DeviceAttentionHost() = default;
  // q and k without RoPE.
  virtual void before_rope(std::int32_t /*layer*/, const DeviceLayer& /*in*/) {}
  // q, k and v to be attended with; q is dense. out [tokens, q_heads, head_dim] of in.type.
  virtual void attend(std::int32_t layer, const DeviceLayer& in, void* out) = 0;
};

}  // namespace kvlab
