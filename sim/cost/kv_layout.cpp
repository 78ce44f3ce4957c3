#include "sim/cost/kv_layout.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "policies/kv/grouped_layers.h"

namespace kvlab {

namespace {

// Layers of each kind on the fullest pipeline stage.
struct Counts {
  std::int64_t full = 0, window = 0, linear = 0;
};

Counts counts_of(const ModelSpec& m, const Parallel& p) {
  Counts counts;
  for (const AttentionClass& layers : attention_classes(m)) {
    const std::int64_t count = ceil_div(layers.count, p.pp);
    (layers.kind == AttentionKind::kLinear ? counts.linear : shows_window(m, layers) ? counts.window : counts.full) += count;
  }
  return counts;
}

// The fewest layers of a kind; the most, where that is less than half as many more: padding then wastes less than groups would.
std::int64_t group_size(const Counts& c) {
  std::int64_t least = c.full, most = c.full;
  for (const std::int64_t count : {c.window, c.linear}) {
    if (count == 0) continue;
    least = std::min(least, count);
    most = std::max(most, count);
  }
  return 2 * most < 3 * least ? most : least;
}

std::int64_t layer_token_bytes(const ModelSpec& m, const Parallel& p) {
  if (m.latent.exists()) return kv_bytes_per_layer_token(m);  // every rank has all of it
  return 2 * std::max<std::int64_t>(1, m.kv_heads / p.tp) * m.head_dim * bits(m.kv_dtype) / 8;
}

}  // namespace

KvLayout kv_layout(const ModelSpec& m, const Parallel& p, std::int64_t block_tokens, bool is_hybrid) {
  Counts counts = counts_of(m, p);
  const std::int64_t all = m.attention_kinds.empty() ? ceil_div(m.layers, p.pp) : counts.full + counts.window;
  if (!is_hybrid) counts = {all, 0, 0};
  KvLayout layout;
  if (counts.full == 0) return layout;  // no model: the keys of an experiment are listed
  layout.group_layers = counts.window == 0 && counts.linear == 0 ? all : group_size(counts);
  layout.page_bytes = block_tokens * layout.group_layers * layer_token_bytes(m, p);
  layout.full_groups = ceil_div(counts.full, layout.group_layers);
  layout.window = counts.window > 0 ? m.some_window : 0;
  layout.window_groups = ceil_div(counts.window, layout.group_layers);
  layout.state_groups = ceil_div(counts.linear, layout.group_layers);
  const std::int64_t state = m.linear.state_bytes(p.tp, m.activation_bytes()) * layout.group_layers;
  layout.state_pages = layout.state_groups * ceil_div(state, layout.page_bytes);
  return layout;
}

std::int64_t sequence_bytes(const KvLayout& layout, std::int64_t block_tokens, std::int64_t tokens, std::int64_t new_tokens) {
  GroupedLayers others({static_cast<std::int32_t>(block_tokens), layout.window, layout.window_groups, layout.state_pages, 0});
  SeqState seq;
  seq.seen_tokens = static_cast<std::int32_t>(tokens);
  const std::int64_t pages = others.step(seq.taking(static_cast<std::int32_t>(new_tokens))).peak_pages;
  return (layout.full_groups * ceil_div(tokens + new_tokens, block_tokens) + pages) * layout.page_bytes;
}

std::int64_t cache_tokens(const KvLayout& layout, std::int64_t pages, std::int64_t block_tokens) {
  return pages / layout.groups() * block_tokens;
}

}  // namespace kvlab
