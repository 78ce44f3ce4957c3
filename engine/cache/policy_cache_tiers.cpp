// Tiered selectors: tokens that no step reads are in CPU memory.
#include <numeric>

#include "engine/cache/policy_cache_keeper.h"
#include "kernels/storage/stored/rows_view.h"
#include "policies/kv/cache/kv_keeper.h"

namespace kvlab {

namespace {

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
