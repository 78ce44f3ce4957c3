#include "engine/label/head_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/label/filter_moments.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

class QueryRecorder final : public Recorder {
 public:
  explicit QueryRecorder(const ModelConfig& config)
      : config_(config),
        moments_(static_cast<std::size_t>(config.layers) * static_cast<std::size_t>(config.kv_heads), FilterMoments(config.head_dim)) {}

  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float>, std::span<const float>,
                    std::span<const float>) override {
    const std::int64_t width = config_.q_width();
    for (std::int32_t h = 0; h < config_.q_heads; ++h) {
      const auto at = static_cast<std::size_t>(layer * config_.kv_heads + h / (config_.q_heads / config_.kv_heads));
      moments_[at].add(q.data() + std::int64_t{h} * config_.head_dim, std::ssize(q) / width, width);
    }
  }

  [[nodiscard]] std::vector<float> filters() const {
    std::vector<float> all;
    for (const FilterMoments& moments : moments_)
      for (const float x : moments.filter()) all.push_back(x);
    return all;
  }

 private:
  const ModelConfig& config_;
  std::vector<FilterMoments> moments_;
};

}  // namespace

std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts) {
  QueryRecorder queries(model.config());
  bool is_empty = true;
  for (const std::vector<std::int32_t>& ids : texts) {
    if (ids.empty()) continue;
    is_empty = false;
    KvState kv(model.config());
    forward(model, ids, kv, &queries);
  }
  if (is_empty) throw InputError("the calibration text has no token");
  return queries.filters();
}

void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters) {
  write_safetensors(path, {{"q_filters", "F32", {model.layers, model.kv_heads, model.head_dim}, filters.data()}},
                    {{"model", model.name}, {"calibration_tokens", std::to_string(tokens)}});
}

void HeadRowRecorder::on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> /*k*/, std::span<const float> /*v*/,
                                   std::span<const float> /*out*/) {
  const std::int64_t width = config_.q_width();
  const auto count = static_cast<std::int32_t>(std::ssize(q) / width);
  const auto begin = static_cast<std::int32_t>(kv_.tokens);  // without the pass's own tokens
  for (std::int32_t i = which_ == Which::kAllQueries ? 0 : count - 1; i < count; ++i) {
    for (std::int32_t h = 0; h < config_.q_heads; ++h) {
      fill(layer, h, begin + i, q.data() + i * width + std::int64_t{h} * config_.head_dim);
      see_(layer, h, begin + i, row_);
    }
  }
}

void HeadRowRecorder::fill(std::int32_t layer, std::int32_t head, std::int32_t position, const float* q) {
  const std::vector<float>& keys = kv_.k[static_cast<std::size_t>(layer)];
  const std::int32_t window = config_.window(layer), d = config_.head_dim, group = config_.q_heads / config_.kv_heads;
  const std::int32_t first = window > 0 ? std::max(0, position + 1 - window) : 0;
  row_.assign(static_cast<std::size_t>(position) + 1, 0.0);
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int32_t i = first; i <= position; ++i) {
    const float* const key = keys.data() + i * kv_.token_floats + std::int64_t{head / group} * d;
    double z = 0;
    for (std::int32_t c = 0; c < d; ++c) z += double{q[c]} * double{key[c]};
    z /= std::sqrt(static_cast<double>(d));
    row_[static_cast<std::size_t>(i)] = z;
    largest = std::max(largest, z);
  }
  for (auto i = static_cast<std::size_t>(first); i < row_.size(); ++i) sum += row_[i] = std::exp(row_[i] - largest);
  for (auto i = static_cast<std::size_t>(first); i < row_.size(); ++i) row_[i] /= sum;
}

}  // namespace kvlab
