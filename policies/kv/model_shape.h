#pragma once

#include <cstdint>

#include "kernels/model/rope/rotary.h"

namespace kvlab {

struct ModelShape {
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, hidden_dim = 0;
  std::int32_t kv_bytes = 2;  // per element
  RopeForm rope = {};
  [[nodiscard]] std::int32_t group() const { return q_heads / kv_heads; }
};

}  // namespace kvlab
