#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/model/rope/rotary.h"

namespace kvlab {

// Llama-like: RMSNorm, RoPE, grouped-query attention, gated SiLU MLP.
struct ModelConfig {
  std::string name;  // the folder's
  std::string type;  // llama, mistral, qwen2 or qwen3
  std::int32_t layers = 0, hidden_dim = 0, intermediate_dim = 0;
  std::int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_tokens = 0;  // with RoPE scaling
  double rope_base = 0;         // theta (Su et al. 2021)
  RopeScaling rope_scaling;
  std::string rope_text = "none";  // as a JSON object with lengths
  float norm_epsilon = 0;
  std::int32_t bos_id = -1;  // -1: none
  bool tied_head = false;    // the output head is the embedding
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;               // RMSNorm of each query and key head before RoPE
  std::vector<std::int32_t> windows;  // [layers] sliding window, 0: none; empty: no layer has one

  [[nodiscard]] std::int64_t q_width() const { return std::int64_t{q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return std::int64_t{kv_heads} * head_dim; }
  // Last tokens that a query sees, with its own; 0: all.
  [[nodiscard]] std::int32_t window(std::int32_t layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
};

// Throws InputError for an invalid id.
void check_token(const ModelConfig& model, std::int32_t position, std::int32_t id);

// Reads DIR/config.json (docs/models.md). Throws InputError with file and key.
ModelConfig read_model_config(const std::string& dir);

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
