#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/model/weights.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// In device memory; null if absent.
using DeviceTensor = DeviceBuffer<std::uint8_t>;

// In the model's type; matrices with the same input are stacked.
struct DeviceLayerWeights {
  DeviceTensor attention_norm, mlp_norm;  // [hidden_dim]
  DeviceTensor qkv, qkv_bias;             // [(q_heads + 2 kv_heads) * head_dim, hidden_dim]
  DeviceTensor q_norm, k_norm;            // [head_dim]
  DeviceTensor o, o_bias;                 // [hidden_dim, q_heads * head_dim]
  DeviceTensor gate_up, gate_up_bias;     // [2 * intermediate_dim, hidden_dim]
  DeviceTensor down, down_bias;           // [hidden_dim, intermediate_dim]
};

struct DeviceWeights {
  DeviceTensor embedding, final_norm;  // [vocab_size, hidden_dim], [hidden_dim]
  DeviceTensor head;                   // [vocab_size, hidden_dim]; null: the embedding
  std::vector<DeviceLayerWeights> layers;
};

// Float32; at most one part of a folder in memory. The source outlives it.
struct WeightParts {
  WeightParts(const ModelWeights& weights);  // NOLINT: weights in memory are parts too
  WeightParts(const WeightReader& reader);   // NOLINT: so is a folder

  std::int64_t num_weights;  // tied count once
  std::function<ModelWeights()> tables;
  std::function<ModelWeights(std::int32_t)> layer;
};

// Throws InputError, before reading, if weights exceed free GPU memory, also a part's errors. Nothing stays allocated then.
DeviceWeights upload_weights(const ModelConfig& config, const WeightParts& weights, ElementType type, CudaContext& cuda);

// Norms are 1. Errors as above.
DeviceWeights random_weights(const ModelConfig& config, ElementType type, CudaContext& cuda);

}  // namespace kvlab
