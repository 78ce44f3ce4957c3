#include <algorithm>

#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Decoded tokens stay.
class PerChunk final : public Trigger {
 public:
  explicit PerChunk(Params& p)
      : block_(p.optional<std::int32_t>("block_tokens", 128, 1, 1 << 20,
                                        "chunk size the method is meant for; cuts come after the host's chunks")),
        keeps_chunk_(p.flag("keep_chunk", false, "tokens of the newest chunk stay, of a longer one the last block_tokens")) {}
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = budget.of(seq.prompt_tokens);
    if (seq.decoding() || !held.exceeds(tokens)) return std::nullopt;
    return tokens;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    const std::int32_t of_prompt = std::min(seq.end(), seq.prompt_tokens);
    return Bound{budget.of(seq.prompt_tokens), of_prompt, seq.end() - of_prompt};
  }
  [[nodiscard]] bool inside_prefill() const override { return true; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override { return {0, keeps_chunk_ ? std::min(seq.new_tokens, block_) : 0}; }

 private:
  std::int32_t block_;
  bool keeps_chunk_;
};

KVLAB_REGISTER(Trigger, PerChunk, "per_chunk", "cuts after each prefill chunk", "KeyDiff: Park et al. 2025, arXiv:2504.15364");

}  // namespace

}  // namespace kvlab
