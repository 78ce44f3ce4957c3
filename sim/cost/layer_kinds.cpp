#include "sim/cost/layer_kinds.h"

#include <algorithm>

#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

AttentionKind kind_of_layer(const ModelSpec& m, std::int64_t layer) {
  if (!m.attention_kinds.empty()) return m.attention_kinds[static_cast<std::size_t>(layer)];
  if (m.latent.exists()) return AttentionKind::kLatent;
  if (m.compressed.exists()) return AttentionKind::kCompressed;
  return m.sliding_window > 0 ? AttentionKind::kWindow : AttentionKind::kFull;
}

bool is_of_heads(AttentionKind kind) { return kind == AttentionKind::kFull || kind == AttentionKind::kWindow; }

LayerShape shape_of(const ModelSpec& m) { return {{m.q_heads, m.kv_heads, m.head_dim, m.head_dim}, m.intermediate}; }

bool is_same(const LayerClass& a, const LayerClass& b) {
  return a.attention == b.attention && a.has_experts == b.has_experts && a.shape == b.shape && a.is_sparse == b.is_sparse &&
         a.has_index == b.has_index;
}

}  // namespace

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
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const LayerClass one = class_of_layer(m, layer);
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const LayerClass& c) { return is_same(c, one); });
    if (same == classes.end())
      classes.push_back(one);
    else
      ++same->count;
  }
  return classes;
}

std::vector<AttentionClass> attention_classes(const ModelSpec& m) {
  std::vector<AttentionClass> classes;
  const auto add = [&](const AttentionClass& one) {
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const AttentionClass& c) {
      return c.kind == one.kind && c.is_sparse == one.is_sparse && c.shape == one.shape;
    });
    if (same == classes.end())
      classes.push_back(one);
    else
      same->count += one.count;
  };
  for (const LayerClass& layers : layer_classes(m)) {
    if (!layers.has_attention()) continue;
    LayerShape shape = layers.shape;
    shape.mlp = 0;
    const std::int64_t window = layers.is_sparse                             ? m.some_window
                                : layers.attention == AttentionKind::kWindow ? std::max(m.sliding_window, m.some_window)
                                                                             : 0;
    add({layers.attention, window, layers.count, shape, layers.is_sparse});
    if (layers.has_index) add({AttentionKind::kIndex, 0, layers.count, {{}, 0, shape.entry_tokens}, false});
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
