#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/model/plain_cache.h"

namespace kvlab {

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
