
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/ceil_div.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "policies/kv/grouped_layers.h"
#include "sim/cost/make_cost_model.h"

namespace kvlab {

namespace {

// On the fullest stage, in units of the largest layer.
struct Counts {
  std::int64_t full = 0, window = 0, linear = 0;
  double layer_bytes = 0, token_bytes = 0;  // per token in the largest layer; over all layers
};

std::int64_t layers_of(double bytes, double layer_bytes) {
  return layer_bytes > 0 ? static_cast<std::int64_t>(std::ceil(bytes / layer_bytes - 1e-9)) : 0;
}

Counts counts_of(const ModelSpec& m, const Parallel& p) {
  Counts counts;
  std::map<std::pair<bool, double>, std::int64_t> alike;  // by (has a window, bytes per token)
  for (const LayerClass& layers : layer_classes(m)) {
    const bool is_window = layers.attention == AttentionKind::kWindow && m.some_window > 0;
    const double bytes = kv_bytes_of_layer(m, layers, p.tp);
    if (layers.attention == AttentionKind::kLinear)
      counts.linear += layers.count;
    else if (bytes > 0)
      alike[{is_window, bytes}] += layers.count;
  }
  counts.linear = ceil_div(counts.linear, p.pp);
  double full = 0, window = 0;
  for (const auto& [key, count] : alike) {
    (key.first ? window : full) += static_cast<double>(ceil_div(count, p.pp)) * key.second;
    counts.layer_bytes = std::max(counts.layer_bytes, key.second);
  }
  counts.token_bytes = full + window;
  counts.full = layers_of(full, counts.layer_bytes);
  counts.window = layers_of(window, counts.layer_bytes);
  return counts;
}

// The smallest count of a kind; the largest if less than half more, since padding then wastes less.
std::int64_t group_size(const Counts& c) {
  std::int64_t least = c.full, most = c.full;
  for (const std::int64_t count : {c.window, c.linear}) {
    if (count == 0) continue;
    least = std::min(least, count);
    most = std::max(most, count);
  }
  return 2 * most < 3 * least ? most : least;
}

constexpr int kMostRanks = 16;

// Smallest tp from `first`, in powers of two, that fits; 0: none.
int fewest_ranks(CostSetup setup, int first, const std::function<bool(const CostSetup&)>& fits) {
  for (int tp = first; tp <= kMostRanks; tp *= 2) {
    if (setup.model.q_heads % tp != 0) continue;
    if (setup.parallel.ep > 1) setup.parallel.ep = tp * setup.parallel.dp;
    setup.parallel.tp = tp;
    if (fits(setup)) return tp;
  }
  return 0;
}

}  // namespace

KvLayout kv_layout(const ModelSpec& m, const Parallel& p, std::int64_t block_tokens, bool is_hybrid) {
  Counts counts = counts_of(m, p);
  const std::int64_t all = layers_of(counts.token_bytes, counts.layer_bytes);
  if (!is_hybrid) counts = {all, 0, 0, counts.layer_bytes, counts.token_bytes};
  KvLayout layout;
  if (counts.full == 0) return layout;  // no model: only listing an experiment's keys
  const bool is_one = counts.window == 0 && counts.linear == 0;
  layout.group_layers = is_one ? all : group_size(counts);
  const double page_token = is_one ? counts.token_bytes : static_cast<double>(layout.group_layers) * counts.layer_bytes;
  layout.page_bytes = std::llround(static_cast<double>(block_tokens) * page_token);
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

std::string setups_that_fit(const CostSetup& setup, const std::function<bool(const CostSetup&)>& fits) {
  const int own = fewest_ranks(setup, 1, fits);
  std::string text = own > setup.parallel.tp ? fmt::format("tp: {}", own) : "";
  for (const char* card : {"h200", "b200"}) {
    CostSetup larger = setup;
    try {
      larger.hardware = load_hardware_spec(card, profiles_folder() + "/hardware");
    } catch (const InputError&) {
      continue;
    }
    if (larger.hardware.memory_bytes <= setup.hardware.memory_bytes) continue;
    const int ranks = fewest_ranks(larger, 1, fits);
    if (ranks == 0 || (own > 0 && ranks >= own)) continue;
    return text + fmt::format("{}{} x {}", text.empty() ? "" : ", or ", ranks * setup.parallel.pp * setup.parallel.dp, card);
  }
  return text;
}

}  // namespace kvlab
