// Prompts of a PolicyCache that lose tokens between layers.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/cache/policy_cache_group.h"

namespace kvlab {

void refuse_pruning(const Recipe& recipe, const ModelConfig& model) {
  for (std::int32_t l = 0; recipe.prunes() && l < model.layers; ++l)
    if (model.window(l) > 0)
      throw InputError(fmt::format(
          "recipe '{}' cannot run: prompts cannot be pruned, because layer {} of the model attends to a window of its own; write "
          "'prompt_pruner: none'",
          recipe.name, l));
}

// Rows that were given pages for the whole prompt give back those that stay empty.
void PolicyCache::place_pruned(Group& g, std::size_t s, std::int32_t layer) {
  KvStore& store = g.layers[place(layer)];
  const std::int32_t first_row = static_cast<std::int32_t>(s) * shape_.kv_heads;
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row) store.shrink(row, store.len(row));
  const KvRows kv = store.rows();
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row)
    for (std::int32_t i = 0; i < g.rows[s]; ++i) kv.position[kv.slot(row, i)] = g.positions[s][place(i)];
}

std::span<const std::int32_t> PolicyCache::going_on(std::int32_t) {
  going_on_.clear();
  if (!policy_.prunes()) return {};
  struct Piece {
    Group* group;
    std::size_t s;
  };
  std::vector<Piece> pieces;  // in the order of the pass
  bool any = false;
  for (const auto& g : groups_) {
    for (std::size_t s = 0; s < g->seqs.size(); ++s) pieces.push_back({g.get(), s});
    any |= std::any_of(g->going_on.begin(), g->going_on.end(), [](const auto& left) { return !left.empty(); });
  }
  if (!any) return {};
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.group->first[a.s] < b.group->first[b.s]; });
  for (const auto& [g, s] : pieces) {
    const std::int64_t first = std::exchange(g->first[s], std::ssize(going_on_));
    const std::vector<std::int32_t>& left = g->going_on[s];
    for (std::int32_t i = 0; left.empty() && i < g->rows[s]; ++i) going_on_.push_back(static_cast<std::int32_t>(first) + i);
    for (const std::int32_t i : left) going_on_.push_back(static_cast<std::int32_t>(first) + i);
    if (left.empty()) continue;
    std::vector<std::int32_t>& positions = g->positions[s];
    for (std::size_t i = 0; i < left.size() && !positions.empty(); ++i) positions[i] = positions[place(left[i])];
    if (positions.empty()) positions = left;
    positions.resize(left.size());
    g->rows[s] = static_cast<std::int32_t>(left.size());
  }
  return going_on_;
}

}  // namespace kvlab
