#pragma once

#include "engine/model/config.h"

namespace kvlab {

// FLOPs of products (multiply and add are two), without norms, positions and the MLP's gate.
struct ModelWork {
  double layers = 0, q_width = 0, kv_width = 0;  // of all heads
  double weights = 0, head_weights = 0;          // per token; per token with logits

  explicit ModelWork(const ModelConfig& c) : layers(c.layers) {
    const double hidden = c.hidden_dim;
    q_width = double{1} * c.q_heads * c.head_dim, kv_width = double{1} * c.kv_heads * c.head_dim;
    weights = layers * hidden * (2 * q_width + 2 * kv_width + 3.0 * c.intermediate_dim);
    head_weights = hidden * c.vocab_size;
  }
  [[nodiscard]] double attention_flops(double pairs) const { return 4 * layers * q_width * pairs; }
  // Causal, without the head.
  [[nodiscard]] double forward_flops(double begin, double end) const {
    return 2 * weights * (end - begin) + attention_flops((end * (end + 1) - begin * (begin + 1)) / 2);
  }
};

}  // namespace kvlab
