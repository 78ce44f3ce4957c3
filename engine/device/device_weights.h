#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/weights.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// A matrix [out, in] or vector of `type` in device memory; null where the model has none.
using DeviceTensor = DeviceBuffer<std::uint8_t>;

// Weights of one layer, of the model's type. Matrices that read the same input are stacked, so that one product computes them all.
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

// A model's weights in float32, one part at a time: from a folder, at most one part is in memory at a time. The source must outlive it.
struct WeightParts {
  WeightParts(const ModelWeights& weights);  // NOLINT: weights in memory are parts too
  WeightParts(const WeightReader& reader);   // NOLINT: so is a folder

  std::int64_t num_weights;              // of the model, tied ones once
  std::function<ModelWeights()> tables;  // as WeightReader's
  std::function<ModelWeights(std::int32_t)> layer;
};

// Errors (InputError): they do not fit into the GPU's free memory, which is found before any part is asked for; says what is needed and
// what would fit. Those of a part. Nothing stays allocated then.
DeviceWeights upload_weights(const ModelConfig& config, const WeightParts& weights, ElementType type, CudaContext& cuda);

// Random matrices and norms of 1, without CPU memory of their size: to measure a model of a given shape. Errors as above.
DeviceWeights random_weights(const ModelConfig& config, ElementType type, CudaContext& cuda);

}  // namespace kvlab
