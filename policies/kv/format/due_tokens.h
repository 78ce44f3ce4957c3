#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/config/param_reader.h"
#include "kernels/kv_rows.h"
#include "kernels/storage/take_due_op.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

// Encodes tokens once, oldest first, in whole blocks, except for the newest residual_tokens to residual_tokens + block_tokens - 1.
struct DueRule {
  std::int32_t residual_tokens = 0, block_tokens = 1;
  bool inside_prompt = false;  // false: the prompt's attention reads unencoded K and V
  bool prompt_only = false;    // once, when the prompt is complete

  // For a row of n without evictions.
  [[nodiscard]] std::int32_t encoded(std::int32_t n) const {
    const std::int32_t old = n > residual_tokens ? n - residual_tokens : 0;
    return old - old % block_tokens;
  }
  // Lengths around `len` at which steps encode equally many tokens, without evictions.
  [[nodiscard]] Lengths lengths(std::int32_t len) const { return Lengths::inside_block(len, block_tokens, residual_tokens); }
};

// Lists the due tokens of a layer. A mark in a word that moves with the token tells if it is encoded. List lengths follow from row lengths;
// after unencoded tokens were evicted, spare entries are -1.
class DueTokens final : public PartState {
 public:
  DueTokens(KvPart& part, DueRule rule, std::uint32_t bit = 1) : PartState(part), rule_(rule), bit_(bit) {}

  // Keys of due tokens (of_values(): values), now marked in word `channel`. Scratch of step.ops; no operation if none are due.
  ListedTokens take(LayerStep& step, std::int32_t channel) {
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

  void forget(std::int32_t index) override {
    const std::ptrdiff_t begin = std::ptrdiff_t{index} * kv_heads_, end = begin + kv_heads_;
    for (std::vector<Row>& layer : rows_)
      if (std::ssize(layer) >= end) std::fill(layer.begin() + begin, layer.begin() + end, Row{});
  }

  [[nodiscard]] const DueRule& rule() const { return rule_; }

 private:
  struct Row {
    std::int32_t end = 0, unencoded = 0;
  };

  Row& row(std::int32_t layer, std::int32_t kv_heads, std::int32_t index, std::int32_t head) {
    kv_heads_ = kv_heads;
    const auto l = static_cast<std::size_t>(layer), at = static_cast<std::size_t>(index) * static_cast<std::size_t>(kv_heads);
    if (rows_.size() <= l) rows_.resize(l + 1);
    if (rows_[l].size() <= at) rows_[l].resize(at + static_cast<std::size_t>(kv_heads));
    return rows_[l][at + static_cast<std::size_t>(head)];
  }

  DueRule rule_;
  std::uint32_t bit_;
  std::vector<std::vector<Row>> rows_;  // [layer][index * kv_heads + head]
  std::int32_t kv_heads_ = 0;
};

// [batch index * kv_heads + head].
inline std::int32_t* state_rows(LayerStep& step) {
  return per_row(step, [&](std::int32_t r) { return seq_of(step, r).index * step.kv.kv_heads + r % step.kv.kv_heads; });
}

// -1 for rows without a completed prompt in this step; null if none has.
inline std::int32_t* prompt_rows(LayerStep& step) {
  if (std::none_of(step.seqs.begin(), step.seqs.end(), [](const SeqStep& s) { return s.completes_prompt(); })) return nullptr;
  std::int32_t* const rows = state_rows(step);
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
    if (!step.seqs[static_cast<std::size_t>(step.kv.sequence(r))].completes_prompt()) rows[r] = -1;
  return rows;
}

// One line per sequence and KV head in every layer; no memory on shapes.
class RowTable final : public PartState {
 public:
  RowTable(KvPart& part, float fill) : PartState(part), fill_(fill) {}

  // [*, width]; long enough for the step's sequences, new ones filled. Null without data.
  float* lines(LayerStep& step, std::int32_t width) {
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

  void forget(std::int32_t index) override {
    const std::int64_t begin = index * sequence_numbers_;
    for (TensorArray<float>& layer : layers_)
      if (begin + sequence_numbers_ <= layer.size()) layer.assign(begin, sequence_numbers_, fill_);
  }

 private:
  float fill_;
  std::int64_t sequence_numbers_ = 0;
  std::vector<TensorArray<float>> layers_;
};

// Per code.
struct SideBits {
  std::int32_t key = 0, value = 0;
};

// Reads `bits`, overridden by `key_bits` and `value_bits` (as K8V4 of KVTuner: Li et al. 2025, arXiv:2502.04420). Throws InputError if all
// three are given.
inline SideBits read_side_bits(Params& p, std::int32_t fallback, std::int32_t least, std::int32_t most) {
  const bool has_key = p.has("key_bits"), has_value = p.has("value_bits");
  if (has_key && has_value && p.has("bits")) p.fail_at("bits", "'bits' changes nothing beside 'key_bits' and 'value_bits': leave it out");
  SideBits bits;
  if (!(has_key && has_value)) bits.key = bits.value = p.optional<std::int32_t>("bits", fallback, least, most, "of a code");
  if (has_key || p.is_describing())
    bits.key = p.optional<std::int32_t>("key_bits", bits.key, least, most, "of a code of K; 'bits' if left out");
  if (has_value || p.is_describing())
    bits.value = p.optional<std::int32_t>("value_bits", bits.value, least, most, "of a code of V; 'bits' if left out");
  return bits;
}

}  // namespace kvlab
