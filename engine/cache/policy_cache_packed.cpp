// Sequences of a PolicyCache that rest as their format stores them.
#include "engine/cache/policy_cache_keeper.h"
#include "kernels/cast/cast.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/low_rank/low_rank.h"
#include "kernels/outliers/outliers.h"
#include "kernels/prune_channels/prune_channels.h"
#include "kernels/sparsify/sparsify.h"

namespace kvlab {

template <class Op>
void PolicyCache::Keeper::give(const LayerStep& step, const ListedTokens& tokens, const Op& op) {
  for (std::size_t s = 0; s < step.seqs.size(); ++s)
    for (const auto& group : groups_)
      for (EngineSequence* const sequence : group->sequences)
        if (sequence->index == step.seqs[s].index)
          sequence->packed[place(step.layer)].keep(op, tokens, static_cast<std::int32_t>(s) * tokens.kv.kv_heads, step.seqs[s].new_tokens);
}

void PolicyCache::Keeper::keep(const LayerStep& step, const Cast& op) { give(step, op.tokens, op); }
void PolicyCache::Keeper::keep(const LayerStep& step, const Dequantize& op) { give(step, op.tokens, op); }
void PolicyCache::Keeper::keep(const LayerStep& step, const LowRankRebuild& op) { give(step, op.factor.tokens, op); }
void PolicyCache::Keeper::keep(const LayerStep& step, const PruneChannels& op) { give(step, op.tokens, op); }
void PolicyCache::Keeper::keep(const LayerStep& step, const RestoreOutliers& op) { give(step, op.outliers.tokens, op); }
void PolicyCache::Keeper::keep(const LayerStep& step, const Unsparsify& op) { give(step, op.tokens, op); }

// Rows whose pages were given back have new ones by now, for which their content is decoded.
void PolicyCache::wake(Group& g, std::int32_t layer) {
  for (std::size_t s = 0; s < g.sequences.size(); ++s)
    if (is_resting(*g.sequences[s], place(layer)))
      g.sequences[s]->packed[place(layer)].fill(g.layers[place(layer)].rows(), static_cast<std::int32_t>(s) * shape_.kv_heads);
}

void PolicyCache::rest(Group& g, std::int32_t layer) {
  if (keeper_ == nullptr) return;
  KvStore& store = g.layers[place(layer)];
  for (std::size_t s = 0; s < g.sequences.size(); ++s) {
    const std::int32_t first_row = static_cast<std::int32_t>(s) * shape_.kv_heads;
    PackedRows& packed = g.sequences[s]->packed[place(layer)];
    packed.settle(store.rows(), first_row, g.seqs[s].new_tokens);
    if (g.seqs[s].end() < g.seqs[s].prompt_tokens || !packed.can_rest()) continue;
    packed.take(store.rows(), first_row);
    for (std::int32_t h = 0; h < shape_.kv_heads; ++h) store.rest(first_row + h);
  }
}

PolicyCache::HeldBytes PolicyCache::held(const EngineSequence& sequence) const {
  HeldBytes held;
  const std::int64_t page_kv = std::int64_t{2} * pages_->page_tokens() * pages_->head_dim() * element_bytes(pages_->type());
  for (std::size_t l = 0; l < sequence.rows.size(); ++l) {
    if (is_resting(sequence, l)) {
      held.kv += sequence.packed[l].kv_bytes();
      held.beside += sequence.packed[l].beside_bytes();
      continue;
    }
    for (const auto& pages : sequence.rows[l].pages) {
      held.kv += std::ssize(pages) * page_kv;
      held.beside += std::ssize(pages) * (pages_->page_bytes() - page_kv);
    }
  }
  return held;
}

}  // namespace kvlab
