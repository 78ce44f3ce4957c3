#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"
#include "policies/kv/footprint.h"

namespace kvlab::testing {

// Sinks and a recent window of `budget` tokens in all, the same in every layer and head, cut when the prompt is complete and then in
// every decode step, the new token in the evicted one's place: a footprint whose pages can be counted by hand.
class SinkWindow final : public Footprint {
 public:
  SinkWindow(std::int32_t budget, std::int32_t block_tokens, std::int64_t pages_per_block, OnPreempt on_preempt = OnPreempt::kSwap)
      : budget_(budget), block_tokens_(block_tokens), pages_per_block_(pages_per_block), on_preempt_(on_preempt) {}

  FootprintStep step(const SeqState& seq) override {
    if (seq.left_hashed) {
      // A chunk being recomputed goes through in pieces no longer than the budget, each with room of its own.
      const std::int32_t kept = std::min(budget_, seq.held_tokens + seq.new_tokens);
      const std::int32_t peak = seq.new_tokens == 1 ? kept : seq.held_tokens + std::min(seq.new_tokens, budget_);
      return {pages(peak), pages(kept), kept, kept, 0, false};
    }
    const std::int32_t after = seq.seen_tokens + seq.new_tokens;
    const bool acts = after >= seq.prompt_tokens;
    if (!acts || after <= budget_) return {0, 0, 0, after, 0, false};
    return {pages(budget_), pages(budget_), budget_, budget_, 0, true};
  }
  void charge(std::span<SeqState> batch, PolicyWork& work) override {
    for (SeqState& seq : batch) {
      if (charged_ != nullptr) charged_->push_back(seq);
      seq.attended_tokens = seq.held_tokens;
      if (step(seq).leaves_hashed) work.ops.push_back({"compact_rows", 1, budget_, 0, false});
    }
  }
  std::int64_t pages_at_end(std::int32_t, std::int32_t seen_tokens) override { return seen_tokens > budget_ ? pages(budget_) : 0; }
  [[nodiscard]] OnPreempt on_preempt() const override { return on_preempt_; }
  [[nodiscard]] std::int32_t fresh_tokens() const override { return fresh_tokens_; }
  void observe_last(std::int32_t tokens) { fresh_tokens_ = tokens; }
  // From now on charged sequences are added to `charged`.
  void note_charged(std::vector<SeqState>* charged) { charged_ = charged; }

 private:
  [[nodiscard]] std::int64_t pages(std::int32_t tokens) const { return ceil_div(tokens, block_tokens_) * pages_per_block_; }

  std::int32_t budget_, block_tokens_;
  std::int64_t pages_per_block_;
  OnPreempt on_preempt_;
  std::int32_t fresh_tokens_ = 1;
  std::vector<SeqState>* charged_ = nullptr;
};

}  // namespace kvlab::testing
