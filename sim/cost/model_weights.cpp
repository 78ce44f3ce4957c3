#include <algorithm>
#include <cmath>

#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

std::int64_t attention_matrices(const ModelSpec& m) { return 2 * m.hidden * (m.q_heads + m.kv_heads) * m.head_dim; }

std::int64_t attention_biases(const ModelSpec& m) {
  return (m.qkv_bias ? (m.q_heads + 2 * m.kv_heads) * m.head_dim : 0) + (m.o_bias ? m.hidden : 0) + (m.has_sinks ? m.q_heads : 0);
}

std::int64_t mlp_matrices(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 3 : 2) * m.hidden * width; }
std::int64_t mlp_biases(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 2 : 1) * width + m.hidden; }
std::int64_t norm_parameters(const ModelSpec& m) { return m.norms * m.norm_parameters + m.qk_norm_parameters; }

// The parts of a layer beside attention, norms and routed experts: matrices, and parameters that keep the model's type.
struct Mlp {
  std::int64_t matrices = 0, others = 0;
};

Mlp mlp_of(const ModelSpec& m, bool has_experts) {
  if (!has_experts) return {mlp_matrices(m, m.intermediate), m.mlp_bias ? mlp_biases(m, m.intermediate) : 0};
  const std::int64_t router = m.hidden * m.experts + (m.expert_bias ? m.experts : 0);
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

std::int64_t layer_parameters(const ModelSpec& m, bool has_experts) {
  const Mlp mlp = mlp_of(m, has_experts);
  return attention_matrices(m) + attention_biases(m) + mlp.matrices + mlp.others + norm_parameters(m) +
         (has_experts ? expert_matrices(m) + expert_biases(m) : 0);
}

// Bytes of one layer on one rank. Matrices and biases are cut, norms are on every rank.
std::int64_t layer_bytes(const ModelSpec& m, bool has_experts, int tp, int ep) {
  const auto act_bits = static_cast<double>(8 * m.activation_bytes());
  const Mlp mlp = mlp_of(m, has_experts);
  const double cut = static_cast<double>(attention_matrices(m)) * m.attention_weights.bits +
                     static_cast<double>(mlp.matrices) * m.mlp_weights.bits +
                     static_cast<double>(attention_biases(m) + mlp.others) * act_bits;
  const double routed =
      has_experts ? static_cast<double>(expert_matrices(m)) * m.expert_weights.bits + static_cast<double>(expert_biases(m)) * act_bits : 0;
  const int expert_ranks = ep > 1 ? ep : tp;
  return static_cast<std::int64_t>(std::ceil(cut / 8 / tp) + std::ceil(routed / 8 / expert_ranks)) +
         norm_parameters(m) * m.activation_bytes();
}

}  // namespace

std::int64_t ModelSpec::num_expert_layers() const {
  if (!is_moe()) return 0;
  return expert_layers.empty() ? layers : std::count(expert_layers.begin(), expert_layers.end(), true);
}

std::int64_t total_parameters(const ModelSpec& m) {
  std::int64_t in_layers = 0;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) in_layers += layer_parameters(m, m.has_experts(layer));
  return in_layers + embedding_parameters(m) + m.norm_parameters + head_parameters(m);
}

std::int64_t weight_bytes(const ModelSpec& m, int tp, int pp, int ep) {
  const std::int64_t dense = layer_bytes(m, false, tp, ep), routed = layer_bytes(m, true, tp, ep), length = ceil_div(m.layers, pp);
  std::int64_t fullest = 0;
  for (int stage = 0; stage < pp; ++stage) {
    const std::int64_t begin = m.layers * stage / pp, end = std::min(m.layers, begin + length);
    std::int64_t bytes = 0;
    for (std::int64_t layer = begin; layer < end; ++layer) bytes += m.has_experts(layer) ? routed : dense;
    fullest = std::max(fullest, bytes);
  }
  const auto head = static_cast<std::int64_t>(std::ceil(static_cast<double>(ceil_div(head_parameters(m), tp)) * m.head_weights.bits / 8));
  return fullest + (ceil_div(embedding_parameters(m), tp) + m.norm_parameters) * m.activation_bytes() + (pp == 1 ? head : 0);
}

std::int64_t kv_bytes_per_token(const ModelSpec& m) { return 2 * m.layers * m.kv_heads * m.head_dim * bits(m.kv_dtype) / 8; }

}  // namespace kvlab
