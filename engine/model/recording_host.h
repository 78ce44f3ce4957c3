#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/record.h"
#include "engine/model/transformer.h"

namespace kvlab {

// Appends requested inputs to `layers` [num_layers].
class RecordingHost final : public AttentionHost {
 public:
  RecordingHost(AttentionHost& inner, const ModelConfig& config, const RecordOptions& options, std::int64_t tokens,
                std::vector<LayerTensors>& layers)
      : inner_(inner), config_(config), options_(options), tokens_(tokens), layers_(layers) {}

  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    if (options_.hidden) add(to.hidden, hidden, config_.hidden_dim);
    if (options_.pre_rope) add(to.pre_q, q, config_.q_width()), add(to.pre_k, k, config_.kv_width());
    inner_.before_rope(layer, hidden, q, k);
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    LayerTensors& to = layers_[static_cast<std::size_t>(layer)];
    add(to.q, q, config_.q_width()), add(to.k, k, config_.kv_width()), add(to.v, v, config_.kv_width());
    inner_.attend(layer, q, k, v, out);
  }
  [[nodiscard]] std::span<const std::int32_t> going_on(std::int32_t layer) override { return inner_.going_on(layer); }

 private:
  void add(std::vector<float>& to, const float* from, std::int64_t width) const { to.insert(to.end(), from, from + tokens_ * width); }

  AttentionHost& inner_;
  const ModelConfig& config_;
  const RecordOptions& options_;
  std::int64_t tokens_;
  std::vector<LayerTensors>& layers_;
};

}  // namespace kvlab
