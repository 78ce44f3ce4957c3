#pragma once

#include <string>
#include <vector>

#include "engine/model/config.h"

namespace kvlab {

// float32, matrices [out, in] row-major, whatever type the file has.
struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // [hidden_dim]
  std::vector<float> q;                         // [q_heads * head_dim, hidden_dim]
  std::vector<float> k, v;                      // [kv_heads * head_dim, hidden_dim]
  std::vector<float> o;                         // [hidden_dim, q_heads * head_dim]
  std::vector<float> gate, up;                  // [intermediate_dim, hidden_dim]
  std::vector<float> down;                      // [hidden_dim, intermediate_dim]
};

struct ModelWeights {
  std::vector<float> embedding;   // [vocab_size, hidden_dim]
  std::vector<float> final_norm;  // [hidden_dim]
  std::vector<float> head;        // [vocab_size, hidden_dim]
  std::vector<LayerWeights> layers;
};

// Reads DIR/model.safetensors. Errors: all of the safetensors reader's, a tensor that this model has no place for.
ModelWeights load_weights(const std::string& dir, const ModelConfig& config);

}  // namespace kvlab
