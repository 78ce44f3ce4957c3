#include "engine/model/plain_cache.h"

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"

namespace kvlab {

namespace {

class PlainAttention final : public AttentionHost {
 public:
  PlainAttention(const ModelConfig& config, KvState& kv, std::int64_t tokens, Recorder* recorder)
      : config_(config), kv_(kv), tokens_(tokens), recorder_(recorder) {}

  void on_residual(std::int32_t stage, const float* residual) override {
    if (recorder_ != nullptr) recorder_->on_residual(stage, span_of(residual, config_.hidden_dim));
  }
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override {
    if (recorder_ == nullptr) return;
    recorder_->on_hidden(layer, span_of(hidden, config_.hidden_dim));
    recorder_->on_pre_rope(layer, span_of(q, config_.q_width()), span_of(k, kv_.token_floats));
  }

  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    std::vector<float>& keys = kv_.k[static_cast<std::size_t>(layer)];
    std::vector<float>& values = kv_.v[static_cast<std::size_t>(layer)];
    const std::span<const float> new_k = span_of(k, kv_.token_floats), new_v = span_of(v, kv_.token_floats);
    keys.insert(keys.end(), new_k.begin(), new_k.end());
    values.insert(values.end(), new_v.begin(), new_v.end());
    AttentionPrefill op{q,
                        keys.data(),
                        values.data(),
                        out,
                        nullptr,
                        tokens_,
                        kv_.tokens,
                        config_.q_heads,
                        config_.kv_heads,
                        config_.head_dim,
                        1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                        config_.window(layer)};
    op.scratch = room_in(scratch_, static_cast<std::size_t>(scratch_floats(op)));
    run_cpu(op);
    if (recorder_ != nullptr) recorder_->on_attention(layer, span_of(q, config_.q_width()), new_k, new_v, span_of(out, config_.q_width()));
  }

 private:
  [[nodiscard]] std::span<const float> span_of(const float* data, std::int64_t width) const {
    return {data, static_cast<std::size_t>(tokens_ * width)};
  }

  const ModelConfig& config_;
  KvState& kv_;
  std::int64_t tokens_;
  Recorder* recorder_;
  BigArray<float> scratch_;
};

}  // namespace

KvState::KvState(const ModelConfig& config) : k(static_cast<std::size_t>(config.layers)), v(k.size()), token_floats(config.kv_width()) {}

void KvState::truncate(std::int64_t kept) {
  if (kept > tokens) throw InternalError("a KV state cannot be cut to more tokens than it holds");
  tokens = kept;
  for (std::vector<float>& layer : k) layer.resize(static_cast<std::size_t>(kept * token_floats));
  for (std::vector<float>& layer : v) layer.resize(static_cast<std::size_t>(kept * token_floats));
}

std::vector<float> forward(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) {
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(kv.tokens));
  PlainAttention host(model.config(), kv, static_cast<std::int64_t>(ids.size()), recorder);
  std::vector<float> hidden = model.forward({ids, positions}, host);
  kv.tokens += static_cast<std::int64_t>(ids.size());
  return hidden;
}

std::vector<float> forward_logits(const Transformer& model, std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) {
  return model.logits(forward(model, ids, kv, recorder));
}

}  // namespace kvlab
