#include <algorithm>
#include <cmath>

#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

// A layer's attention: matrices, those of them that every rank has whole, and parameters that keep the model's type.
struct Attention {
  std::int64_t matrices = 0, uncut = 0, others = 0;
};

Attention latent_attention(const ModelSpec& m) {
  const LatentAttention& l = m.latent;
  const std::int64_t q_width = m.q_heads * (l.nope + l.rope);
  const std::int64_t down = m.hidden * (l.q_rank + l.cached());
  const std::int64_t up = (l.q_rank > 0 ? l.q_rank : m.hidden) * q_width + l.kv_rank * m.q_heads * (l.nope + l.value);
  return {down + up + m.q_heads * l.value * m.hidden, down, m.qkv_bias ? l.q_rank + l.cached() : 0};
}

Attention linear_attention(const ModelSpec& m) {
  const LinearAttention& l = m.linear;
  const std::int64_t rates = l.rule == LinearAttention::Rule::kDelta ? 2 * l.value_heads : 0;  // decay and its step's bias
  return {m.hidden * (l.projected_width() + l.value_width()), 0, l.conv_width() * l.conv_tokens + rates};
}

Attention attention_of(const ModelSpec& m, AttentionKind kind) {
  if (kind == AttentionKind::kLatent) return latent_attention(m);
  if (kind == AttentionKind::kLinear) return linear_attention(m);
  const std::int64_t gate = m.attention_gate ? m.hidden * m.q_heads * m.head_dim : 0;
  const std::int64_t biases =
      (m.qkv_bias ? (m.q_heads + 2 * m.kv_heads) * m.head_dim : 0) + (m.o_bias ? m.hidden : 0) + (m.has_sinks ? m.q_heads : 0);
  return {2 * m.hidden * (m.q_heads + m.kv_heads) * m.head_dim + gate, 0, biases};
}

std::int64_t mlp_matrices(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 3 : 2) * m.hidden * width; }
std::int64_t mlp_biases(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 2 : 1) * width + m.hidden; }

std::int64_t norm_parameters(const ModelSpec& m, AttentionKind kind) {
  const std::int64_t of_layer = m.norms * m.norm_parameters;
  if (kind == AttentionKind::kLatent) return of_layer + m.latent.q_rank + m.latent.kv_rank;
  if (kind != AttentionKind::kLinear) return of_layer + m.qk_norm_parameters;
  return of_layer + (m.linear.rule == LinearAttention::Rule::kDelta ? m.linear.value_dim : m.linear.value_width());
}

// The parts of a layer beside attention, norms and routed experts: matrices, and parameters that keep the model's type.
struct Mlp {
  std::int64_t matrices = 0, others = 0;
};

Mlp mlp_of(const ModelSpec& m, bool has_experts) {
  if (!has_experts) return {mlp_matrices(m, m.intermediate), m.mlp_bias ? mlp_biases(m, m.intermediate) : 0};
  const std::int64_t router = m.hidden * m.experts + (m.expert_bias || m.router_bias ? m.experts : 0);
  return {mlp_matrices(m, m.shared_intermediate), router + (m.shared_gate ? m.hidden : 0)};
}

std::int64_t expert_matrices(const ModelSpec& m) { return m.experts * mlp_matrices(m, m.moe_intermediate); }
std::int64_t expert_biases(const ModelSpec& m) { return m.expert_bias ? m.experts * mlp_biases(m, m.moe_intermediate) : 0; }

std::int64_t embedding_parameters(const ModelSpec& m) {
  constexpr std::int64_t kOptPositionOffset = 2;  // OPT's position table has two extra rows
  const std::int64_t positions = m.learned_positions ? (m.max_positions + kOptPositionOffset) * m.hidden : 0;
  const std::int64_t projections = m.embedding_width != m.hidden ? 2 * m.embedding_width * m.hidden : 0;
  return m.vocabulary * m.embedding_width + positions + projections;
}

std::int64_t head_parameters(const ModelSpec& m) { return m.tied_embeddings ? 0 : m.vocabulary * m.embedding_width; }

std::int64_t layer_parameters(const ModelSpec& m, const LayerClass& layer) {
  const Attention attention = attention_of(m, layer.attention);
  const Mlp mlp = mlp_of(m, layer.has_experts);
  return attention.matrices + attention.others + mlp.matrices + mlp.others + norm_parameters(m, layer.attention) +
         (layer.has_experts ? expert_matrices(m) + expert_biases(m) : 0);
}

// Bytes of one layer on one rank. Matrices and biases are cut, but for some of latent attention; norms are on every rank.
std::int64_t layer_bytes(const ModelSpec& m, const LayerClass& layer, int tp, int ep) {
  const auto act_bits = static_cast<double>(8 * m.activation_bytes());
  const Attention attention = attention_of(m, layer.attention);
  const Mlp mlp = mlp_of(m, layer.has_experts);
  const double cut = static_cast<double>(attention.matrices - attention.uncut) * m.attention_weights.bits +
                     static_cast<double>(mlp.matrices) * m.mlp_weights.bits + static_cast<double>(attention.others + mlp.others) * act_bits;
  const double uncut = static_cast<double>(attention.uncut) * m.attention_weights.bits;
  const double routed =
      layer.has_experts ? static_cast<double>(expert_matrices(m)) * m.expert_weights.bits + static_cast<double>(expert_biases(m)) * act_bits
                        : 0;
  const int expert_ranks = ep > 1 ? ep : tp;
  return static_cast<std::int64_t>(std::ceil(cut / 8 / tp) + std::ceil(uncut / 8) + std::ceil(routed / 8 / expert_ranks)) +
         norm_parameters(m, layer.attention) * m.activation_bytes();
}

}  // namespace

std::int64_t ModelSpec::num_expert_layers() const {
  if (!is_moe()) return 0;
  return expert_layers.empty() ? layers : std::count(expert_layers.begin(), expert_layers.end(), true);
}

std::int64_t total_parameters(const ModelSpec& m) {
  std::int64_t in_layers = 0;
  for (const LayerClass& layers : layer_classes(m)) in_layers += layers.count * layer_parameters(m, layers);
  return in_layers + embedding_parameters(m) + m.norm_parameters + head_parameters(m);
}

std::int64_t active_parameters(const ModelSpec& m) {
  const std::int64_t idle = m.is_moe() ? m.experts - m.experts_per_token : 0;
  const std::int64_t biases = m.expert_bias ? mlp_biases(m, m.moe_intermediate) : 0;
  return total_parameters(m) - m.num_expert_layers() * idle * (mlp_matrices(m, m.moe_intermediate) + biases);
}

std::int64_t weight_bytes(const ModelSpec& m, int tp, int pp, int ep) {
  const std::int64_t length = ceil_div(m.layers, pp);
  std::int64_t fullest = 0;
  for (int stage = 0; stage < pp; ++stage) {
    const std::int64_t begin = m.layers * stage / pp, end = std::min(m.layers, begin + length);
    std::int64_t bytes = 0;
    for (std::int64_t layer = begin; layer < end; ++layer) bytes += layer_bytes(m, class_of_layer(m, layer), tp, ep);
    fullest = std::max(fullest, bytes);
  }
  const auto head = static_cast<std::int64_t>(std::ceil(static_cast<double>(ceil_div(head_parameters(m), tp)) * m.head_weights.bits / 8));
  return fullest + (ceil_div(embedding_parameters(m), tp) + m.norm_parameters) * m.activation_bytes() + (pp == 1 ? head : 0);
}

std::int64_t kv_bytes_per_layer_token(const ModelSpec& m) {
  const std::int64_t values = m.latent.exists() ? m.latent.cached() : 2 * m.kv_heads * m.head_dim;
  return values * bits(m.kv_dtype) / 8;
}

std::int64_t kv_bytes_per_token(const ModelSpec& m) {
  return (m.layers - layers_with(m, AttentionKind::kLinear)) * kv_bytes_per_layer_token(m);
}

}  // namespace kvlab
