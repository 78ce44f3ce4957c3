// Data of sequences outside of pages: packed rows, and tiers for tokens that no step reads.
#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "engine/cache/policy_cache_group.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/storage/stored/rows_view.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/cache/kv_keeper.h"

namespace kvlab {

namespace {

template <class F>
void fitted(const F& f) {
  try {
    f();
  } catch (const GpuMemoryError& e) {
    throw InputError(
        fmt::format("what the recipe encodes does not fit into the GPU's memory beside weights and KV cache: "
                    "run fewer or shorter sequences at a time ({})",
                    e.what()));
  }
}

RowsView rows_of(const KvRows& kv, std::size_t s) { return {kv, static_cast<std::int32_t>(s) * kv.kv_heads, kv.kv_heads}; }

using TokenLists = std::vector<std::vector<std::int32_t>>;

TokenLists on_host(const KvRows& kv, const Selection& selection, const TensorMemory& memory) {
  TokenLists lists(place(kv.num_rows));
  const std::vector<std::int32_t> all = memory.to_host(selection.index, selection.index_first[kv.num_rows]);
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    lists[place(r)].assign(all.begin() + selection.index_first[r], all.begin() + selection.index_first[r + 1]);
  return lists;
}

TokenLists all_tokens(const KvRows& kv) {
  TokenLists lists;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) lists.push_back(consecutive(0, kv.len[r]));
  return lists;
}

TokenLists united(const TokenLists& a, const TokenLists& b) {
  TokenLists both(std::max(a.size(), b.size()));
  for (std::size_t r = 0; r < both.size(); ++r) {
    const std::vector<std::int32_t> none;
    const std::vector<std::int32_t>&x = r < a.size() ? a[r] : none, &y = r < b.size() ? b[r] : none;
    std::set_union(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both[r]));
  }
  return both;
}

std::span<const std::vector<std::int32_t>> of_sequence(const TokenLists& lists, std::size_t s, std::int32_t kv_heads) {
  return std::span(lists).subspan(s * place(kv_heads), place(kv_heads));
}

}  // namespace

EngineSequence& PolicyCache::Keeper::sequence_of(const LayerStep& step, std::size_t s) const {
  for (const auto& group : groups_)
    for (EngineSequence* const sequence : group->sequences)
      if (sequence->index == step.seqs[s].index) return *sequence;
  throw InternalError("a policy acts on a sequence that is not of the step");
}

// Reads the lists back once for all sequences.
void PolicyCache::Keeper::keep(const LayerStep& step, const DecodeOp& op) {
  const ListedTokens& tokens = op.tokens();
  if (!packs_ || tokens.total() == 0) return;
  const auto give_all = [&] {
    const std::vector<std::int32_t> index = step.memory().to_host(tokens.index, tokens.total());
    ListedTokens on_host = tokens;
    on_host.index = index.data();
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      EngineSequence& sequence = sequence_of(step, s);
      if (sequence.shares_pages) continue;
      sequence.packed[place(step.layer)].keep(op, on_host, static_cast<std::int32_t>(s) * tokens.kv.kv_heads, step.seqs[s].new_tokens);
    }
  };
  step.ops.timed({kAtRest}, [&] { fitted(give_all); });
}

void PolicyCache::Keeper::keep(const LayerStep& step, const TokenCopy& dropped) {
  const KvRows& kv = dropped.tokens.kv;
  const std::int64_t token_bytes = std::int64_t{2} * kv.head_dim * element_bytes(kv.type), total = dropped.tokens.total();
  const std::vector<std::uint32_t> position = step.memory().to_host(dropped.words, total);
  const std::vector<std::uint8_t> packed = step.memory().to_host(static_cast<const std::uint8_t*>(dropped.stored), total * token_bytes);
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int64_t begin = dropped.tokens.first[r], end = dropped.tokens.first[r + 1];
    EngineSequence& sequence = sequence_of(step, place(kv.sequence(r)));
    EngineSequence::Offloaded& to = sequence.offloaded[place(step.layer * kv.kv_heads + r % kv.kv_heads)];
    to.position.insert(to.position.end(), position.begin() + begin, position.begin() + end);
    to.kv.insert(to.kv.end(), packed.begin() + begin * token_bytes, packed.begin() + end * token_bytes);
  }
}

// Decodes packed rows into new pages.
void PolicyCache::wake(Group& g, std::int32_t layer) {
  if (!keeper_->packs()) return;
  const KvRows kv = g.layers[place(layer)].rows();
  // heads per call
  const std::int32_t heads = shape_.kv_heads, each = model_->memory().on_host() ? 1 : heads;
  for_each_apart(model_->memory(), std::ssize(g.sequences) * heads / each, [&](std::int64_t i) {
    const std::int64_t s = i * each / heads;
    const EngineSequence& sequence = *g.sequences[static_cast<std::size_t>(s)];
    if (!is_resting(sequence, place(layer))) return;
    fitted([&] {
      sequence.packed[place(layer)].fill(kv, static_cast<std::int32_t>(s) * heads, static_cast<std::int32_t>(i * each % heads), each);
    });
  });
}

void PolicyCache::rest(Group& g, std::int32_t layer) {
  if (keeper_->packs()) ops_.timed({kAtRest}, [&] { rest_packed(g, layer); });
}

void PolicyCache::rest_packed(Group& g, std::int32_t layer) {
  const KvRows kv = g.layers[place(layer)].rows();
  for_each_apart(model_->memory(), std::ssize(g.sequences), [&](std::int64_t i) {
    const auto s = static_cast<std::size_t>(i);
    const std::int32_t first_row = static_cast<std::int32_t>(i) * shape_.kv_heads;
    PackedRows& packed = g.sequences[s]->packed[place(layer)];
    packed.settle(kv, first_row, g.seqs[s].new_tokens);
    if (g.sequences[s]->shares_pages || g.seqs[s].end() < g.seqs[s].prompt_tokens || !packed.can_rest()) return;
    fitted([&] { packed.take(kv, first_row); });
  });
  rest_pages(g, layer);
}

void PolicyCache::rest_pages(Group& g, std::int32_t layer) {
  for (std::size_t s = 0; s < g.sequences.size(); ++s)
    for (std::int32_t h = 0; h < shape_.kv_heads; ++h)
      if (is_resting(*g.sequences[s], place(layer)) || is_lowered(*g.sequences[s], place(layer)))
        g.layers[place(layer)].rest(static_cast<std::int32_t>(s) * shape_.kv_heads + h);
}

void PolicyCache::move_rest(EngineSequence& sequence, bool to_host) {
  const TensorMemory memory = to_host ? TensorMemory() : model_->memory();
  fitted([&] {
    for (PackedRows& packed : sequence.packed) packed.move_to(memory);
    for (LowerTier& tier : sequence.tiers) tier.move_to(memory);
  });
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
  for (const LowerTier& tier : sequence.tiers)
    held.kv += tier.kv_bytes(), held.beside += tier.beside_bytes(), held.host += tier.host_bytes();
  for (const EngineSequence::Offloaded& offloaded : sequence.offloaded) held.host += static_cast<std::int64_t>(offloaded.kv.size());
  return held;
}

void PolicyCache::Keeper::fetch(const LayerStep& step, const Selection& selection) {
  if (!read_.empty()) return;
  const EngineSequence& first = sequence_of(step, 0);
  if (!first.tiers.empty() && first.tiers[place(step.layer)].exists()) step.ops.timed({kAtRest}, [&] { fetch_all(step, selection); });
}

void PolicyCache::Keeper::fetch_all(const LayerStep& step, const Selection& selection) {
  const auto tier = [&](std::size_t s) { return &sequence_of(step, s).tiers[place(step.layer)]; };
  read_ = selection.index == nullptr ? all_tokens(step.kv) : on_host(step.kv, selection, step.memory());
  std::vector<std::int64_t> fetched(step.seqs.size());
  for_each_apart(step.memory(), std::ssize(fetched), [&](std::int64_t i) {
    const auto s = static_cast<std::size_t>(i);
    fetched[s] = tier(s)->fetch(rows_of(step.kv, s).rows(), step.memory(), of_sequence(read_, s, step.kv.kv_heads));
  });
  moved_.fetched_bytes = std::accumulate(fetched.begin(), fetched.end(), moved_.fetched_bytes);
}

void PolicyCache::raise(Group& g, std::int32_t layer) {
  const KvRows kv = g.layers[place(layer)].rows();
  for_each_apart(model_->memory(), std::ssize(g.sequences), [&](std::int64_t i) {
    const auto s = static_cast<std::size_t>(i);
    if (is_lowered(*g.sequences[s], place(layer))) g.sequences[s]->tiers[place(layer)].raise(rows_of(kv, s).rows(), options_.poisons);
  });
}

// Sequences in their prompt and packed ones have no lower tier.
void PolicyCache::lower(Group& g, std::int32_t layer) {
  if (!options_.tiers || policy_.lower(layer) == Selector::Lower::kNothing) return;
  const Ops::Frame frame(ops_);
  const Selection beside = policy_.stays(step_of(g), layer);
  ops_.timed({kAtRest}, [&] { lower(g, layer, beside); });
}

void PolicyCache::lower(Group& g, std::int32_t layer, const Selection& beside) {
  const KvRows kv = g.layers[place(layer)].rows();
  TokenLists stays = keeper_->read_tokens();
  if (beside.index != nullptr) stays = united(stays, on_host(kv, beside, model_->memory()));
  stays.resize(place(kv.num_rows));
  std::vector<std::int64_t> stored(g.sequences.size());
  for_each_apart(model_->memory(), std::ssize(stored), [&](std::int64_t i) {
    const auto s = static_cast<std::size_t>(i);
    EngineSequence& sequence = *g.sequences[s];
    if (sequence.shares_pages || g.seqs[s].end() < g.seqs[s].prompt_tokens || is_resting(sequence, place(layer))) return;
    stored[s] = sequence.tiers[place(layer)].take(rows_of(kv, s).rows(), model_->memory(), of_sequence(stays, s, shape_.kv_heads));
  });
  keeper_->note_stored(std::accumulate(stored.begin(), stored.end(), std::int64_t{0}));
  rest_pages(g, layer);
}

Traffic PolicyCache::take_moved() { return keeper_->take_moved(); }

}  // namespace kvlab
