// Prompts that lose tokens between layers.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/cache/policy_cache_group.h"

namespace kvlab {

void refuse_pruning(const Recipe& recipe, const ModelConfig& model) {
  for (std::int32_t l = 0; recipe.prunes() && l < model.layers; ++l)
    if (model.window(l) > 0)
      throw InputError(
          fmt::format("recipe '{}' cannot run: prompts cannot be {}, because layer {} of the model attends to a window of its own; write "
                      "'{}: none'",
                      recipe.name, recipe.rewrites() ? "rewritten" : "pruned", l, recipe.pruning_part()));
}

// Rows give back pages that stay empty.
void PolicyCache::place_pruned(Group& g, std::size_t s, std::int32_t layer) {
  KvStore& store = g.layers[place(layer)];
  const std::int32_t first_row = static_cast<std::int32_t>(s) * shape_.kv_heads;
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row) store.shrink(row, store.len(row));
  const KvRows kv = store.rows();
  for (std::int32_t row = first_row; row < first_row + shape_.kv_heads; ++row)
    for (std::int32_t i = 0; i < g.rows[s]; ++i) kv.position[kv.slot(row, i)] = g.positions[s][place(i)];
}

std::vector<PolicyCache::Piece> PolicyCache::pieces_in_order() const {
  std::vector<Piece> pieces;
  for (const auto& g : groups_)
    for (std::size_t s = 0; s < g->seqs.size(); ++s) pieces.push_back({g.get(), s});
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.group->first[a.s] < b.group->first[b.s]; });
  return pieces;
}

// Appends a sequence's rows at places `left` (empty: all), and updates its first row.
void PolicyCache::take_rows(const Piece& piece, std::span<const std::int32_t> left, std::vector<std::int32_t>& rows) {
  Group& g = *piece.group;
  const auto first = static_cast<std::int32_t>(std::exchange(g.first[piece.s], std::ssize(rows)));
  for (std::int32_t i = 0; left.empty() && i < g.rows[piece.s]; ++i) rows.push_back(first + i);
  for (const std::int32_t i : left) rows.push_back(first + i);
  if (!left.empty()) g.rows[piece.s] = static_cast<std::int32_t>(left.size());
}

std::span<const std::int32_t> PolicyCache::going_on(std::int32_t) {
  going_on_.clear();
  const auto loses = [](const auto& g) {
    return std::any_of(g->going_on.begin(), g->going_on.end(), [](const auto& left) { return !left.empty(); });
  };
  if (!policy_.prunes() || std::none_of(groups_.begin(), groups_.end(), loses)) return {};
  for (const Piece& piece : pieces_in_order()) {
    const std::vector<std::int32_t>& left = piece.group->going_on[piece.s];
    take_rows(piece, left, going_on_);
    if (left.empty()) continue;
    std::vector<std::int32_t>& positions = piece.group->positions[piece.s];
    for (std::size_t i = 0; i < left.size() && !positions.empty(); ++i) positions[i] = positions[place(left[i])];
    if (positions.empty()) positions = left;
    positions.resize(left.size());
  }
  return going_on_;
}

}  // namespace kvlab
