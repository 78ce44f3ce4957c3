#include <algorithm>
#include <cmath>

#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

// A layer's attention parameters; uncut: on every rank; others: in the model's type.
struct Attention {
  std::int64_t matrices = 0, uncut = 0, others = 0;
};

Attention latent_attention(const ModelSpec& m) {
  const LatentAttention& l = m.latent;
  const std::int64_t q_width = m.q_heads * (l.nope + l.rope), out = m.q_heads * l.value;
  const std::int64_t down = m.hidden * (l.q_rank + l.cached()), gate = m.attention_gate ? m.hidden * out : 0;
  const std::int64_t up = (l.q_rank > 0 ? l.q_rank : m.hidden) * q_width + l.kv_rank * m.q_heads * (l.nope + l.value);
  return {down + up + out * m.hidden + gate, down, m.qkv_bias ? l.q_rank + l.cached() : 0};
}

Attention linear_attention(const ModelSpec& m) {
  const LinearAttention& l = m.linear;
  const std::int64_t rates = l.rule == LinearAttention::Rule::kDelta ? 2 * l.value_heads : 0;  // decay and step bias
  return {m.hidden * (l.projected_width() + l.value_width()) + l.inner, 0,
          l.conv_width() * l.conv_tokens + (l.in_columns > 0 ? l.vectors : rates)};
}

// Two products make the compressed vectors; with an index their halves overlap (DeepSeek-V4).
Attention compressed_attention(const ModelSpec& m, const LayerClass& layer) {
  const CompressedAttention& c = m.compressed;
  const std::int64_t q = m.q_heads * c.dim, entry = layer.shape.entry_tokens, halves = layer.has_index ? 2 : 1;
  const std::int64_t vectors = entry == 0 ? 0 : 2 * m.hidden * halves * c.dim;
  const std::int64_t out = q * c.out_rank + c.out_groups * c.out_rank * m.hidden, down = m.hidden * (c.q_rank + c.dim);
  return {down + c.q_rank * q + vectors + out, down + vectors, m.q_heads + entry * halves * c.dim + (entry > 0 ? c.dim : 0)};
}

Attention index_of(const ModelSpec& m, const LayerClass& layer) {
  if (!layer.has_index) return {};
  const SparseIndex& x = m.index;
  const std::int64_t queries = (x.query_rank > 0 ? x.query_rank : m.hidden) * x.heads * x.dim, weights = x.query_rank > 0 ? x.heads : 0;
  const std::int64_t keys = m.compressed.exists() ? 4 * x.dim : x.dim;
  const std::int64_t all = queries + m.hidden * (keys + weights);
  return {all, all, m.compressed.exists() ? (2 * layer.shape.entry_tokens + 1) * x.dim : 2 * x.dim};
}

Attention plain_attention(const ModelSpec& m, const HeadShape& h) {
  const std::int64_t gate = m.hidden * (m.attention_gate ? h.out_width() : m.head_gate ? h.q : 0);
  const std::int64_t biases = (m.qkv_bias ? h.q_width() + h.projected() : 0) + (m.o_bias ? m.hidden : 0) + (m.has_sinks ? h.q : 0);
  return {m.hidden * (h.q_width() + h.projected() + h.out_width()) + gate, 0, biases};
}

Attention own_attention(const ModelSpec& m, const LayerClass& layer) {
  const AttentionKind kind = layer.attention;
  if (kind == AttentionKind::kLatent) return latent_attention(m);
  if (kind == AttentionKind::kLinear) return linear_attention(m);
  if (kind == AttentionKind::kCompressed) return compressed_attention(m, layer);
  return kind == AttentionKind::kNone || kind == AttentionKind::kIndex ? Attention{} : plain_attention(m, layer.shape.heads);
}

Attention attention_of(const ModelSpec& m, const LayerClass& layer) {
  const Attention own = own_attention(m, layer), index = index_of(m, layer);
  return {own.matrices + index.matrices, own.uncut + index.uncut, own.others + index.others};
}

std::int64_t mlp_matrices(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 3 : 2) * m.hidden * width; }
std::int64_t mlp_biases(const ModelSpec& m, std::int64_t width) { return (m.gated_mlp ? 2 : 1) * width + m.hidden; }

std::int64_t norm_parameters(const ModelSpec& m, const LayerClass& layer) {
  const std::int64_t of_layer = (layer.parts() == 2 ? m.norms : m.norms / 2 * layer.parts()) * m.norm_parameters;
  const LinearAttention& l = m.linear;
  const AttentionKind kind = layer.attention;
  if (kind == AttentionKind::kLatent) return of_layer + m.latent.q_rank + m.latent.kv_rank;
  if (kind == AttentionKind::kCompressed) return of_layer + m.compressed.q_rank + m.compressed.dim;
  if (kind == AttentionKind::kLinear)
    return of_layer + (l.in_columns > 0 ? 0 : l.rule == LinearAttention::Rule::kDelta ? l.value_dim : l.value_width());
  if (kind != AttentionKind::kFull && kind != AttentionKind::kWindow) return of_layer;
  const bool is_per_head = m.qk_norm_parameters == 2 * m.head_dim;
  return of_layer + (is_per_head ? 2 * layer.shape.heads.key_dim : m.qk_norm_parameters);
}

// A layer without attention, norms and routed experts.
struct Mlp {
  std::int64_t matrices = 0, others = 0;
};

Mlp mlp_of(const ModelSpec& m, const LayerClass& layer) {
  const std::int64_t dense = layer.shape.mlp;
  if (!layer.has_experts) return {mlp_matrices(m, dense), m.layer_extras + (m.mlp_bias && dense > 0 ? mlp_biases(m, dense) : 0)};
  const std::int64_t router = m.hidden * m.experts + (m.expert_bias || m.router_bias ? m.experts : 0);
  return {mlp_matrices(m, m.shared_intermediate) + 2 * m.hidden * m.routed_hidden,
          m.layer_extras + router + (m.shared_gate ? m.hidden : 0)};
}

std::int64_t one_expert(const ModelSpec& m) { return (m.gated_mlp ? 3 : 2) * m.expert_input() * m.moe_intermediate; }
std::int64_t expert_matrices(const ModelSpec& m) { return m.experts * one_expert(m); }
std::int64_t expert_biases(const ModelSpec& m) { return m.expert_bias ? m.experts * mlp_biases(m, m.moe_intermediate) : 0; }

std::int64_t embedding_parameters(const ModelSpec& m) {
  constexpr std::int64_t kOptPositionOffset = 2;  // two extra rows
  const std::int64_t positions = m.learned_positions ? (m.max_positions + kOptPositionOffset) * m.hidden : 0;
  const std::int64_t projections = m.embedding_width != m.hidden ? 2 * m.embedding_width * m.hidden : 0;
  return m.vocabulary * m.embedding_width + positions + projections + m.embedding_extras;
}

std::int64_t head_parameters(const ModelSpec& m) { return m.tied_embeddings ? 0 : m.vocabulary * m.embedding_width; }

std::int64_t layer_parameters(const ModelSpec& m, const LayerClass& layer) {
  const Attention attention = attention_of(m, layer);
  const Mlp mlp = mlp_of(m, layer);
  return attention.matrices + attention.others + mlp.matrices + mlp.others + norm_parameters(m, layer) +
         (layer.has_experts ? expert_matrices(m) + expert_biases(m) : 0);
}

// One layer on one rank. Splits matrices (except `uncut`) and biases; norms are replicated.
std::int64_t layer_bytes(const ModelSpec& m, const LayerClass& layer, int tp, int ep) {
  const auto act_bits = static_cast<double>(8 * m.activation_bytes());
  const Attention attention = attention_of(m, layer);
  const Mlp mlp = mlp_of(m, layer);
  const double cut = static_cast<double>(attention.matrices - attention.uncut) * m.attention_weights.bits +
                     static_cast<double>(mlp.matrices) * m.mlp_weights.bits + static_cast<double>(attention.others + mlp.others) * act_bits;
  const double uncut = static_cast<double>(attention.uncut) * m.attention_weights.bits;
  const double routed =
      layer.has_experts ? static_cast<double>(expert_matrices(m)) * m.expert_weights.bits + static_cast<double>(expert_biases(m)) * act_bits
                        : 0;
  const int expert_ranks = ep > 1 ? ep : tp;
  return static_cast<std::int64_t>(std::ceil(cut / 8 / tp) + std::ceil(uncut / 8) + std::ceil(routed / 8 / expert_ranks)) +
         norm_parameters(m, layer) * m.activation_bytes();
}

AttentionKind kind_of_layer(const ModelSpec& m, std::int64_t layer) {
  if (!m.attention_kinds.empty()) return m.attention_kinds[static_cast<std::size_t>(layer)];
  if (m.latent.exists()) return AttentionKind::kLatent;
  if (m.compressed.exists()) return AttentionKind::kCompressed;
  return m.sliding_window > 0 ? AttentionKind::kWindow : AttentionKind::kFull;
}

bool is_of_heads(AttentionKind kind) { return kind == AttentionKind::kFull || kind == AttentionKind::kWindow; }

LayerShape shape_of(const ModelSpec& m) { return {{m.q_heads, m.kv_heads, m.head_dim, m.head_dim}, m.intermediate}; }

// To the class that differs in its count alone, if there is one.
template <class Class>
void add(std::vector<Class>& classes, Class one) {
  const std::int64_t count = one.count;
  const auto same = std::find_if(classes.begin(), classes.end(), [&](const Class& c) {
    one.count = c.count;
    return c == one;
  });
  one.count = count;
  if (same == classes.end())
    classes.push_back(one);
  else
    same->count += count;
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
  return total_parameters(m) - m.num_expert_layers() * idle * (one_expert(m) + biases);
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

double kv_bytes_of_layer(const ModelSpec& m, const LayerClass& layer, std::int64_t tp) {
  const HeadShape& h = layer.shape.heads;
  const auto value = static_cast<double>(bits(m.kv_dtype)) / 8;
  double own = 0;
  const double key = m.index.key_bytes > 0 ? static_cast<double>(m.index.key_bytes) : static_cast<double>(m.index.dim) * value;
  if (layer.attention == AttentionKind::kLatent)
    own = static_cast<double>(m.latent.cached()) * value;  // replicated
  else if (layer.attention == AttentionKind::kCompressed && layer.shape.entry_tokens > 0)
    own = static_cast<double>(m.compressed.dim) * value / static_cast<double>(layer.shape.entry_tokens);
  else if (layer.attention == AttentionKind::kFull || layer.attention == AttentionKind::kWindow)
    own = static_cast<double>(h.kv == 0 ? 0 : h.cached() / h.kv * std::max<std::int64_t>(1, h.kv / tp)) * value;
  if (!layer.has_index) return own;
  return own + key / static_cast<double>(std::max<std::int64_t>(1, layer.shape.entry_tokens));
}

std::int64_t kv_bytes_per_token(const ModelSpec& m) {
  double bytes = 0;
  for (const LayerClass& layers : layer_classes(m)) bytes += static_cast<double>(layers.count) * kv_bytes_of_layer(m, layers);
  return std::llround(bytes);
}

LayerClass class_of_layer(const ModelSpec& m, std::int64_t layer) {
  const auto at = static_cast<std::size_t>(layer);
  LayerClass one{kind_of_layer(m, layer), m.has_experts(layer), 1, {}};
  one.shape = m.layer_shapes.empty() ? shape_of(m) : m.layer_shapes[at];
  if (one.has_experts) one.shape.mlp = 0;
  if (!is_of_heads(one.attention)) one.shape.heads = {};
  one.is_sparse = !m.sparse_layers.empty() && m.sparse_layers[at];
  one.has_index = one.is_sparse && (m.index_layers.empty() || m.index_layers[at]);
  return one;
}

std::vector<LayerClass> layer_classes(const ModelSpec& m) {
  std::vector<LayerClass> classes;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) add(classes, class_of_layer(m, layer));
  return classes;
}

std::vector<AttentionClass> attention_classes(const ModelSpec& m) {
  std::vector<AttentionClass> classes;
  for (const LayerClass& layers : layer_classes(m)) {
    if (!layers.has_attention()) continue;
    LayerShape shape = layers.shape;
    shape.mlp = 0;
    const std::int64_t window = layers.is_sparse                             ? m.some_window
                                : layers.attention == AttentionKind::kWindow ? std::max(m.sliding_window, m.some_window)
                                                                             : 0;
    add<AttentionClass>(classes, {layers.attention, window, layers.count, shape, layers.is_sparse});
    if (layers.has_index) add<AttentionClass>(classes, {AttentionKind::kIndex, 0, layers.count, {{}, 0, shape.entry_tokens}, false});
  }
  return classes;
}

bool shows_window(const ModelSpec& m, const AttentionClass& layers) {
  return layers.is_sparse || (layers.kind == AttentionKind::kWindow && m.some_window > 0);
}

AttentionClass profiled_attention(const ModelSpec& m) {
  const std::vector<AttentionClass> classes = attention_classes(m);
  const auto full = std::find_if(classes.begin(), classes.end(), [](const AttentionClass& c) { return c.kind == AttentionKind::kFull; });
  return full == classes.end() ? classes.front() : *full;
}

}  // namespace kvlab
