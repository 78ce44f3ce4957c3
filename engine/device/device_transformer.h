#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device/device_attention.h"
#include "engine/device/device_weights.h"
#include "engine/model/transformer.h"
#include "kernels/model/rope/rotary.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

// Transformer on a GPU: one type, fp32 sums, products in cuBLASLt. One pass at a time.
class DeviceTransformer {
 public:
  // Throws InputError if weights do not fit, CudaError for unsupported bf16. The context outlives this.
  DeviceTransformer(CudaContext& cuda, const ModelConfig& config, const WeightParts& weights, ElementType type);
  DeviceTransformer(CudaContext& cuda, ModelConfig config, DeviceWeights weights, ElementType type);

  // Hidden states [n, hidden_dim] after the last norm, of type(), in device memory until the next pass. Throws InputError for invalid ids
  // or too little memory.
  const void* forward(const TokenBatch& batch, DeviceAttentionHost& host);

  // forward() in parts, for graphs. The pass neither copies from nor waits for the CPU.
  struct Inputs {
    std::int32_t *ids, *positions;  // [tokens] in device memory
  };
  Inputs inputs(std::int64_t tokens);
  // If a quarter of the free memory remains.
  void reserve(std::int64_t tokens, std::int64_t rows);
  void make_rotations(std::int64_t positions);
  const void* run(std::int64_t tokens, DeviceAttentionHost& host);
  const float* all_logits(std::int64_t tokens);
  // Passes use these addresses; a change makes graphs stale.
  [[nodiscard]] std::vector<const void*> places() const { return {room_.data(), logits_.data(), cos_.data(), sin_.data()}; }

  // [rows.size(), hidden_dim], of type(), in the frame's scratch memory.
  const void* rows_of_pass(std::span<const std::int32_t> rows);
  // Last pass, float32 [rows.size(), vocab_size], in device memory until the next pass or call.
  const float* logits(std::span<const std::int32_t> rows);
  // [n, hidden_dim] in CPU memory.
  const float* logits_of(std::span<const float> hidden);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] ElementType type() const { return type_; }
  [[nodiscard]] CudaContext& cuda() const { return cuda_; }
  [[nodiscard]] const DeviceWeights& weights() const { return weights_; }
  // Float32 [hidden_dim, q_heads * head_dim]; made on first use.
  const float* output_weights(std::int32_t layer);
  [[nodiscard]] std::int64_t activation_bytes(std::int64_t tokens) const;

 private:
  struct Activations;
  Activations activations(std::int64_t tokens);
  void head(const void* hidden, std::int64_t rows);
  void attention(std::int32_t layer, DeviceAttentionHost& host, Activations& a);
  void project(const DeviceLayerWeights& w, Activations& a);
  void project_apart(const DeviceLayerWeights& w, Activations& a);
  void mlp(const DeviceLayerWeights& w, const Activations& a);
  void norm(const DeviceTensor& weight, const Activations& a);
  void linear(const void* x, const void* w, const void* bias, void* y, std::int64_t tokens, std::int64_t in, std::int64_t out);

  CudaContext& cuda_;
  ModelConfig config_;
  ElementType type_;
  DeviceWeights weights_;
  std::vector<TensorArray<float>> output_weights_;  // [layers]
  TensorArray<std::uint8_t> room_;
  TensorArray<float> logits_;
  Rotary rotary_;
  TensorArray<float> cos_, sin_;  // [positions, head_dim / 2]
  const void* hidden_ = nullptr;
};

}  // namespace kvlab
