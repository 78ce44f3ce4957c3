#include "engine/label/query_filters.h"

#include "base/error.h"
#include "engine/label/filter_moments.h"
#include "engine/model/plain_cache.h"
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

}  // namespace kvlab
