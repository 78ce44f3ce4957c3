#pragma once

#include "tests/cuda/engine_fixture.h"

namespace kvlab {

// A model that is nothing but its shape.
class ShapeModel final : public CacheModel {
 public:
  ShapeModel(std::int32_t layers, TensorMemory memory, ElementType type) : config_(tiny_config()), memory_(memory), type_(type) {
    config_.layers = layers;
    for (std::int32_t l = 0; l < config_.layers; ++l) {
      const std::vector<float> w =
          bf16_floats(std::int64_t{config_.hidden_dim} * config_.q_heads * config_.head_dim, 900 + static_cast<std::uint64_t>(l), 0.1F);
      w_o_.emplace_back(memory).append_from_host(w.data(), static_cast<std::int64_t>(w.size()));
      w_q_.push_back(bf16_floats(static_cast<std::int64_t>(w.size()), 950 + static_cast<std::uint64_t>(l), 0.1F));
    }
  }
  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] TensorMemory memory() const override { return memory_; }
  [[nodiscard]] ElementType kv_type() const override { return type_; }
  [[nodiscard]] QueryWeights query_weights(std::int32_t layer) const override {
    return memory_.on_host() ? QueryWeights{w_q_[static_cast<std::size_t>(layer)].data()} : QueryWeights{};
  }
  [[nodiscard]] const float* output_weights(std::int32_t layer) const override { return w_o_[static_cast<std::size_t>(layer)].data(); }

 private:
  ModelConfig config_;
  TensorMemory memory_;
  ElementType type_;
  std::vector<TensorArray<float>> w_o_;
  std::vector<std::vector<float>> w_q_;
};

// A layer's tensors in a step, numbers that bf16 holds.
struct LayerInputs {
  LayerInputs(std::int64_t tokens, std::uint64_t seed)
      : hidden(bf16_floats(tokens * 64, seed, 1)),
        pre_q(bf16_floats(tokens * 4 * 64, seed + 1, 1)),
        q(bf16_floats(tokens * 4 * 64, seed + 2, 1)),
        pre_k(bf16_floats(tokens * 2 * 64, seed + 3, 1)),
        k(bf16_floats(tokens * 2 * 64, seed + 4, 1)),
        v(bf16_floats(tokens * 2 * 64, seed + 5, 1)) {}
  std::vector<float> hidden, pre_q, q, pre_k, k, v;
};

// The output of attention in a layer of a step of `tokens`, on the CPU and on a GPU with inputs of T.
inline std::vector<float> run_layer(PolicyCache& cache, std::int32_t layer, std::int32_t tokens, std::uint64_t seed) {
  const LayerInputs in(tokens, seed);
  std::vector<float> out(in.q.size());
  cache.before_rope(layer, in.hidden.data(), in.pre_q.data(), in.pre_k.data());
  cache.attend(layer, in.q.data(), in.k.data(), in.v.data(), out.data());
  return out;
}
template <class T>
std::vector<float> run_layer(PolicyCache& cache, std::int32_t layer, std::int32_t tokens, std::uint64_t seed, CudaContext& cuda) {
  const auto there = [](const std::vector<float>& x) {
    std::vector<T> y;
    for (const float value : x) y.push_back(from_float<T>(value));
    return DeviceBuffer<T>(y);
  };
  const LayerInputs in(tokens, seed);
  const auto hidden = there(in.hidden), pre_q = there(in.pre_q), q = there(in.q), pre_k = there(in.pre_k), k = there(in.k), v = there(in.v);
  const DeviceBuffer<T> out(static_cast<std::int64_t>(in.q.size()));
  cache.before_rope(layer, {tokens, kElementType<T>, hidden.data(), pre_q.data(), pre_k.data(), v.data(), 256, 128});
  cache.attend(layer, {tokens, kElementType<T>, hidden.data(), q.data(), k.data(), v.data(), 256, 128}, out.data());
  return floats(out.to_host(cuda.stream()));
}

}  // namespace kvlab
