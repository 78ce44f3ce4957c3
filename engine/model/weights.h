#pragma once

#include <string>
#include <vector>

#include "engine/model/config.h"

namespace kvlab {

// float32, matrices [out, in] row-major, whatever type the file has. What a model does not have is empty.
struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // [hidden_dim]
  std::vector<float> q;                         // [q_heads * head_dim, hidden_dim]
  std::vector<float> k, v;                      // [kv_heads * head_dim, hidden_dim]
  std::vector<float> o;                         // [hidden_dim, q_heads * head_dim]
  std::vector<float> gate, up;                  // [intermediate_dim, hidden_dim]
  std::vector<float> down;                      // [hidden_dim, intermediate_dim]
  std::vector<float> q_bias, k_bias, v_bias;    // [out]
  std::vector<float> o_bias;                    // [hidden_dim]
  std::vector<float> gate_bias, up_bias;        // [intermediate_dim]
  std::vector<float> down_bias;                 // [hidden_dim]
  std::vector<float> q_norm, k_norm;            // [head_dim]
};

struct ModelWeights {
  std::vector<float> embedding;    // [vocab_size, hidden_dim]
  std::vector<float> final_norm;   // [hidden_dim]
  std::vector<float> untied_head;  // [vocab_size, hidden_dim]; empty: the head is the embedding
  std::vector<LayerWeights> layers;

  [[nodiscard]] const std::vector<float>& head() const { return untied_head.empty() ? embedding : untied_head; }
};

// Reads the tensors of the folder's safetensors files (F32, BF16 or F16), which must be exactly the model's; buffers of RoPE frequencies,
// which older files carry, are passed over. No more is held than these float32 arrays: files are mapped, not read. Errors (InputError): all
// of WeightFiles'; a tensor that is missing, of another shape or dtype, holds a NaN or infinity, or has no place in the model; a head that
// differs from the embedding that config.json ties it to.
ModelWeights load_weights(const std::string& dir, const ModelConfig& config);

}  // namespace kvlab
