#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Q-Filters (Godey et al. 2025, arXiv:2503.02812): -u [layers * kv_heads * head_dim], u the top right-singular vector of a KV head's
// post-RoPE queries with mean q.u > 0. Deterministic. Throws InputError without tokens.
std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts);

// Tensor q_filters [layers, kv_heads, head_dim].
void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters);

// Reports softmax of q.k / sqrt(head_dim) in float64.
class HeadRowRecorder final : public Recorder {
 public:
  // row [position + 1]; 0 outside of the window.
  using See = std::function<void(std::int32_t layer, std::int32_t head, std::int32_t position, std::span<const double> row)>;
  enum class Which : std::uint8_t { kAllQueries, kLastQuery };  // of a pass
  HeadRowRecorder(const ModelConfig& config, const KvState& kv, Which which, See see)
      : config_(config), kv_(kv), which_(which), see_(std::move(see)) {}
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> out) override;

 private:
  void fill(std::int32_t layer, std::int32_t head, std::int32_t position, const float* q);

  const ModelConfig& config_;
  const KvState& kv_;
  Which which_;
  See see_;
  std::vector<double> row_;
};

}  // namespace kvlab
