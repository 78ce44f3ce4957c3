#include "engine/model/gradient_tape.h"

#include <cmath>

#include "kernels/attention/attention_gradient/attention_gradient.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

void keep_span(std::vector<float>& to, std::span<const float> from) { to.assign(from.begin(), from.end()); }

std::vector<float> zeroed(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

// y = x w^T + bias, x [tokens, in_dim].
std::vector<float> product(const std::vector<float>& x, std::int64_t tokens, Weight w, Weight bias) {
  const std::int64_t in_dim = std::ssize(x) / tokens, out_dim = std::ssize(w) / in_dim;
  std::vector<float> y = zeroed(tokens * out_dim);
  run_cpu(Linear{x.data(), w.data(), y.data(), bias.empty() ? nullptr : bias.data(), tokens, in_dim, out_dim});
  return y;
}

// dx [tokens, in_dim] += dy w.
void add_product(std::span<const float> dy, Weight w, std::int64_t tokens, std::vector<float>& dx) {
  const std::int64_t in_dim = std::ssize(dx) / tokens;
  run_cpu(LinearGradient{dy.data(), w.data(), dx.data(), tokens, in_dim, std::ssize(w) / in_dim});
}

}  // namespace

struct GradientTape::Sweep {
  std::int64_t tokens;
  std::vector<float> stream;        // [tokens, hidden_dim] gradient of the residual stream
  std::vector<float> normed, d_in;  // [tokens, hidden_dim] branch input, its gradient
  std::vector<float> cos, sin;      // [tokens, head_dim / 2] of the inverse rotation
  std::vector<float> d_out, dq;     // [tokens, q_heads, head_dim]
  std::vector<float> dk, dv;        // [tokens, kv_heads, head_dim]
};

GradientTape::GradientTape(const Transformer& model, Recorder* inner)
    : model_(model),
      inner_(inner),
      residual_(static_cast<std::size_t>(2 * model.config().layers + 1)),
      q_(static_cast<std::size_t>(model.config().layers)) {}

void GradientTape::on_hidden(std::int32_t layer, std::span<const float> hidden) {
  if (inner_ != nullptr) inner_->on_hidden(layer, hidden);
}
void GradientTape::on_pre_rope(std::int32_t layer, std::span<const float> q, std::span<const float> k) {
  if (inner_ != nullptr) inner_->on_pre_rope(layer, q, k);
}
void GradientTape::on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                                std::span<const float> out) {
  keep_span(q_[static_cast<std::size_t>(layer)], q);
  if (inner_ != nullptr) inner_->on_attention(layer, q, k, v, out);
}
void GradientTape::on_residual(std::int32_t stage, std::span<const float> residual) {
  keep_span(residual_[static_cast<std::size_t>(stage)], residual);
  if (inner_ != nullptr) inner_->on_residual(stage, residual);
}

std::int64_t GradientTape::tokens() const { return std::ssize(residual_.back()) / model_.config().hidden_dim; }

void GradientTape::through_mlp(std::int32_t layer, Sweep& s) const {
  const ModelConfig& c = model_.config();
  const LayerWeights& w = model_.weights().layers[static_cast<std::size_t>(layer)];
  const float* const in = stage(2 * layer + 1);
  run_cpu(RmsNorm{in, nullptr, w.mlp_norm.data(), s.normed.data(), s.tokens, c.hidden_dim, c.norm_epsilon});
  std::vector<float> gate = product(s.normed, s.tokens, w.gate, w.gate_bias), up = product(s.normed, s.tokens, w.up, w.up_bias);
  std::vector<float> d_gated = zeroed(s.tokens * c.intermediate_dim);
  add_product(s.stream, w.down, s.tokens, d_gated);
  run_cpu(SiluMulGradient{d_gated.data(), gate.data(), up.data(), s.tokens, c.intermediate_dim});
  std::fill(s.d_in.begin(), s.d_in.end(), 0.0F);
  add_product(gate, w.gate, s.tokens, s.d_in);
  add_product(up, w.up, s.tokens, s.d_in);
  run_cpu(RmsNormGradient{in, w.mlp_norm.data(), s.d_in.data(), s.stream.data(), s.tokens, c.hidden_dim, c.norm_epsilon});
}

void GradientTape::through_attention(std::int32_t layer, const KvState& kv, Sweep& s) const {
  const ModelConfig& c = model_.config();
  const LayerWeights& w = model_.weights().layers[static_cast<std::size_t>(layer)];
  const auto l = static_cast<std::size_t>(layer);
  std::fill(s.d_out.begin(), s.d_out.end(), 0.0F);
  add_product(s.stream, w.o, s.tokens, s.d_out);
  run_cpu(AttentionGradient{q_[l].data(), kv.k[l].data(), kv.v[l].data(), s.d_out.data(), s.dq.data(), s.dk.data(), s.dv.data(), s.tokens,
                            kv.tokens - s.tokens, c.q_heads, c.kv_heads, c.head_dim, 1.0F / std::sqrt(static_cast<float>(c.head_dim)),
                            c.window(layer)});
  run_cpu(Rope{s.dq.data(), s.dq.data(), s.cos.data(), s.sin.data(), nullptr, nullptr, s.tokens, c.q_heads, c.head_dim});
  run_cpu(Rope{s.dk.data(), s.dk.data(), s.cos.data(), s.sin.data(), nullptr, nullptr, s.tokens, c.kv_heads, c.head_dim});
  const float* const in = stage(2 * layer);
  run_cpu(RmsNorm{in, nullptr, w.attention_norm.data(), s.normed.data(), s.tokens, c.hidden_dim, c.norm_epsilon});
  if (c.qk_norm) through_head_norms(w, s);
  std::fill(s.d_in.begin(), s.d_in.end(), 0.0F);
  add_product(s.dq, w.q, s.tokens, s.d_in);
  add_product(s.dk, w.k, s.tokens, s.d_in);
  add_product(s.dv, w.v, s.tokens, s.d_in);
  run_cpu(RmsNormGradient{in, w.attention_norm.data(), s.d_in.data(), s.stream.data(), s.tokens, c.hidden_dim, c.norm_epsilon});
}

// From normed queries and keys to the projections.
void GradientTape::through_head_norms(const LayerWeights& w, Sweep& s) const {
  const ModelConfig& c = model_.config();
  const auto turn = [&](std::vector<float>& d, Weight weight, Weight bias, Weight norm) {
    const std::vector<float> x = product(s.normed, s.tokens, weight, bias);
    std::vector<float> dx = zeroed(std::ssize(d));
    run_cpu(RmsNormGradient{x.data(), norm.data(), d.data(), dx.data(), std::ssize(d) / c.head_dim, c.head_dim, c.norm_epsilon});
    d.swap(dx);
  };
  turn(s.dq, w.q, w.q_bias, w.q_norm);
  turn(s.dk, w.k, w.k_bias, w.k_norm);
}

void GradientTape::backward(const KvState& kv, const Seen& seen) const {
  const ModelConfig& c = model_.config();
  const std::int64_t n = tokens(), hidden = n * c.hidden_dim, q_width = n * c.q_heads * c.head_dim, kv_width = n * c.kv_heads * c.head_dim;
  Sweep s{n,
          residual_.back(),
          zeroed(hidden),
          zeroed(hidden),
          zeroed(n * c.head_dim / 2),
          zeroed(n * c.head_dim / 2),
          zeroed(q_width),
          zeroed(q_width),
          zeroed(kv_width),
          zeroed(kv_width)};
  for (float& x : s.stream) x *= 2;
  Rotary({c.rope_base, c.rope_scaling}, c.head_dim).fill(consecutive(kv.tokens - n, n), s.cos.data(), s.sin.data());
  for (float& x : s.sin) x = -x;
  for (std::int32_t layer = c.layers - 1; layer >= 0; --layer) {
    through_mlp(layer, s);
    seen(layer, s.stream);
    if (layer > 0) through_attention(layer, kv, s);
  }
}

std::vector<std::vector<float>> GradientTape::norms(const KvState& kv) const {
  std::vector<std::vector<float>> all(q_.size());
  const auto width = static_cast<std::size_t>(model_.config().hidden_dim);
  backward(kv, [&](std::int32_t layer, std::span<const float> gradient) {
    for (std::size_t at = 0; at < gradient.size(); at += width) {
      double sum = 0;
      for (const float x : gradient.subspan(at, width)) sum += double{x} * double{x};
      all[static_cast<std::size_t>(layer)].push_back(static_cast<float>(std::sqrt(sum)));
    }
  });
  return all;
}

}  // namespace kvlab
