#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/big_array.h"
#include "engine/model/config.h"

namespace kvlab {

// Float32; empty: none.
using Weight = std::span<const float>;

// Matrices are [out, in], row-major.
struct LayerWeights {
  Weight attention_norm, mlp_norm;  // [hidden_dim]
  Weight q;                         // [q_heads * head_dim, hidden_dim]
  Weight k, v;                      // [kv_heads * head_dim, hidden_dim]
  Weight o;                         // [hidden_dim, q_heads * head_dim]
  Weight gate, up;                  // [intermediate_dim, hidden_dim]
  Weight down;                      // [hidden_dim, intermediate_dim]
  Weight q_bias, k_bias, v_bias;    // [out]
  Weight o_bias;                    // [hidden_dim]
  Weight gate_bias, up_bias;        // [intermediate_dim]
  Weight down_bias;                 // [hidden_dim]
  Weight q_norm, k_norm;            // [head_dim]
};

struct ModelWeights {
  std::shared_ptr<const BigArray<float>> memory;  // in order of use; copies share it
  Weight embedding;                               // [vocab_size, hidden_dim]
  Weight final_norm;                              // [hidden_dim]
  Weight untied_head;                             // [vocab_size, hidden_dim]; empty: tied to the embedding
  std::vector<LayerWeights> layers;

  [[nodiscard]] Weight head() const { return untied_head.empty() ? embedding : untied_head; }
};

// By Hugging Face name and shape. The following throw InputError if memory is short.
using FillTensor = std::function<void(const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to)>;
ModelWeights make_weights(const ModelConfig& config, const FillTensor& fill);

// For timing.
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed);

class WeightFiles;

// Mapped safetensors (F32, BF16, F16) as float32: exactly the model's tensors, except RoPE buffers.
class WeightReader {
 public:
  // Throws InputError as WeightFiles, for missing, unexpected or wrong tensors, or a head unlike its tied embedding.
  WeightReader(const std::string& dir, ModelConfig config);

  [[nodiscard]] std::int64_t num_weights() const;

  // Throws InputError for NaN, infinity or too little memory.
  [[nodiscard]] ModelWeights all() const;
  [[nodiscard]] ModelWeights tables() const;
  [[nodiscard]] ModelWeights layer(std::int32_t layer) const;

 private:
  ModelConfig config_;
  std::shared_ptr<const WeightFiles> files_;
};

// Errors as WeightReader.
ModelWeights load_weights(const std::string& dir, const ModelConfig& config);

}  // namespace kvlab
