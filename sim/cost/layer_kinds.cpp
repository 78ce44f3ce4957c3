#include "sim/cost/layer_kinds.h"

#include <algorithm>

#include "sim/cost/model_spec.h"

namespace kvlab {

namespace {

AttentionKind kind_of_layer(const ModelSpec& m, std::int64_t layer) {
  if (!m.attention_kinds.empty()) return m.attention_kinds[static_cast<std::size_t>(layer)];
  if (m.latent.exists()) return AttentionKind::kLatent;
  return m.sliding_window > 0 ? AttentionKind::kWindow : AttentionKind::kFull;
}

}  // namespace

LayerClass class_of_layer(const ModelSpec& m, std::int64_t layer) { return {kind_of_layer(m, layer), m.has_experts(layer), 1}; }

std::vector<LayerClass> layer_classes(const ModelSpec& m) {
  std::vector<LayerClass> classes;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const LayerClass one = class_of_layer(m, layer);
    const auto same = std::find_if(classes.begin(), classes.end(),
                                   [&](const LayerClass& c) { return c.attention == one.attention && c.has_experts == one.has_experts; });
    if (same == classes.end())
      classes.push_back(one);
    else
      ++same->count;
  }
  return classes;
}

std::vector<AttentionClass> attention_classes(const ModelSpec& m) {
  std::vector<AttentionClass> classes;
  for (const LayerClass& layers : layer_classes(m)) {
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const AttentionClass& c) { return c.kind == layers.attention; });
    if (same != classes.end()) {
      same->count += layers.count;
      continue;
    }
    const std::int64_t window = layers.attention == AttentionKind::kWindow ? std::max(m.sliding_window, m.some_window) : 0;
    classes.push_back({layers.attention, window, layers.count});
  }
  return classes;
}

bool shows_window(const ModelSpec& m, const AttentionClass& layers) { return layers.kind == AttentionKind::kWindow && m.some_window > 0; }

AttentionClass profiled_attention(const ModelSpec& m) {
  const std::vector<AttentionClass> classes = attention_classes(m);
  const auto full = std::find_if(classes.begin(), classes.end(), [](const AttentionClass& c) { return c.kind == AttentionKind::kFull; });
  return full == classes.end() ? classes.front() : *full;
}

std::int64_t layers_with(const ModelSpec& m, AttentionKind kind) {
  std::int64_t count = 0;
  for (const AttentionClass& c : attention_classes(m)) count += c.kind == kind ? c.count : 0;
  return count;
}

}  // namespace kvlab
