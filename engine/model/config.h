#pragma once

#include <cstdint>
#include <string>

namespace kvlab {

// The shape of a Llama-type decoder: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP, no biases.
struct ModelConfig {
  std::string name;  // of the model's folder
  std::int32_t layers = 0, hidden_dim = 0, intermediate_dim = 0;
  std::int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_tokens = 0;  // positions the model was trained for
  double rope_base = 0;         // theta of RoPE (Su et al. 2021)
  float norm_epsilon = 0;
  std::int32_t bos_id = -1;  // -1: none
  bool tied_head = false;    // the output head is the embedding table
};

// Reads DIR/config.json in Hugging Face layout. Errors (InputError, with file and key): no such file, not JSON, a model type or an
// option that the transformer does not compute (biases, RoPE scaling, another activation), a key missing or out of range.
ModelConfig read_model_config(const std::string& dir);

}  // namespace kvlab
