#include "policies/kv/format/due_tokens.h"

#include <algorithm>

#include "kernels/storage/take_due_op.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

DueTokens::Row& DueTokens::row(std::int32_t layer, std::int32_t kv_heads, std::int32_t index, std::int32_t head) {
  kv_heads_ = kv_heads;
  const auto l = static_cast<std::size_t>(layer), at = static_cast<std::size_t>(index) * static_cast<std::size_t>(kv_heads);
  if (rows_.size() <= l) rows_.resize(l + 1);
  if (rows_[l].size() <= at) rows_[l].resize(at + static_cast<std::size_t>(kv_heads));
  return rows_[l][at + static_cast<std::size_t>(head)];
}

ListedTokens DueTokens::take(LayerStep& step, std::int32_t channel) {
  const KvRows& kv = step.kv;
  std::int64_t* const first = step.ops.host_longs(kv.num_rows + 1);
  first[0] = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const SeqStep& seq = step.seqs[static_cast<std::size_t>(kv.sequence(r))];
    Row& state = row(step.layer, kv.kv_heads, seq.index, r % kv.kv_heads);
    if (state.end != seq.seen_tokens) {  // new here: as earlier steps would have left it
      const std::int32_t before = std::max(0, kv.len[r] - seq.new_tokens);
      const bool was_ready = rule_.inside_prompt || seq.decoding();
      state.unencoded = was_ready ? before - rule_.encoded(before) : before;
    }
    state.end = seq.end();
    state.unencoded = std::min(kv.len[r], state.unencoded + seq.new_tokens);
    const bool ready = rule_.prompt_only ? seq.completes_prompt() : rule_.inside_prompt || seq.end() >= seq.prompt_tokens;
    const std::int32_t due = ready ? rule_.encoded(state.unencoded) : 0;
    state.unencoded -= due;
    first[r + 1] = first[r] + due;
  }
  ListedTokens listed{kv, first, nullptr, false};
  if (listed.total() == 0) return listed;
  std::int32_t* const index = step.ops.ints(listed.total());
  listed.index = index;
  step.ops(TakeDue{kv, channel, bit_, rule_.residual_tokens, rule_.block_tokens, first, index});
  return listed;
}

void DueTokens::forget(std::int32_t index) {
  for (std::vector<Row>& layer : rows_) {
    const auto begin = static_cast<std::size_t>(index) * static_cast<std::size_t>(kv_heads_);
    for (std::size_t h = 0; h < static_cast<std::size_t>(kv_heads_) && begin + h < layer.size(); ++h) layer[begin + h] = {};
  }
}

std::int32_t* state_rows(LayerStep& step) {
  return per_row(step, [&](std::int32_t r) { return seq_of(step, r).index * step.kv.kv_heads + r % step.kv.kv_heads; });
}

std::int32_t* prompt_rows(LayerStep& step) {
  if (std::none_of(step.seqs.begin(), step.seqs.end(), [](const SeqStep& s) { return s.completes_prompt(); })) return nullptr;
  std::int32_t* const rows = state_rows(step);
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
    if (!step.seqs[static_cast<std::size_t>(step.kv.sequence(r))].completes_prompt()) rows[r] = -1;
  return rows;
}

float* RowTable::lines(LayerStep& step, std::int32_t width) {
  if (!step.ops.computes()) return nullptr;
  sequence_numbers_ = std::int64_t{step.kv.kv_heads} * width;
  std::int32_t most = -1;
  for (const SeqStep& seq : step.seqs) most = std::max(most, seq.index);
  const auto layer = static_cast<std::size_t>(step.layer);
  const std::int64_t needed = (most + 1) * sequence_numbers_;
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  layers_[layer].settle_in(step.memory());
  if (layers_[layer].size() < needed) layers_[layer].resize(needed, fill_);
  return layers_[layer].data();
}

void RowTable::forget(std::int32_t index) {
  const std::int64_t begin = index * sequence_numbers_;
  for (TensorArray<float>& layer : layers_)
    if (begin + sequence_numbers_ <= layer.size()) layer.assign(begin, sequence_numbers_, fill_);
}

}  // namespace kvlab
