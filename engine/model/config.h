#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/model/rope/rotary.h"

namespace kvlab {

// The shape of a decoder of the Llama kind: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.
struct ModelConfig {
  std::string name;  // of the model's folder
  std::string type;  // llama, mistral, qwen2 or qwen3
  std::int32_t layers = 0, hidden_dim = 0, intermediate_dim = 0;
  std::int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_tokens = 0;  // positions the model was trained for, or what its RoPE scaling stretches them to
  double rope_base = 0;         // theta of RoPE (Su et al. 2021)
  RopeScaling rope_scaling;
  std::string rope_text = "none";  // the scaling as a JSON object with the lengths that it refers to
  float norm_epsilon = 0;
  std::int32_t bos_id = -1;  // -1: none
  bool tied_head = false;    // the output head is the embedding table
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;               // RMSNorm of each query and key head before RoPE
  std::vector<std::int32_t> windows;  // [layers] of sliding attention, 0: none; or empty: none anywhere

  // Number of tokens that a query sees, the last ones, itself included; 0: all.
  [[nodiscard]] std::int32_t window(std::int32_t layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
};

// Reads DIR/config.json in Hugging Face layout; docs/models.md lists the supported ones. Errors (InputError, with file, key, what was found
// and what is allowed): no such file, not JSON, a model type or an option that the transformer does not compute, a key missing or out of
// range.
ModelConfig read_model_config(const std::string& dir);

}  // namespace kvlab
