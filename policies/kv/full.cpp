#include <limits>

#include "policies/kv/footprint.h"

namespace kvlab {

namespace {

// Keeps every token: plain paged KV.
class Full final : public Footprint {
 public:
  explicit Full(Params&) {}
  FootprintStep step(const SeqState& seq, int new_tokens, bool) const override {
    const std::int32_t after = seq.seen_tokens + new_tokens;
    return {after, after, false};
  }
  void ops(const SeqState&, int, bool, std::vector<PolicyOp>&) const override {}
  [[nodiscard]] Outlook outlook(const SeqState&) const override { return {true, std::numeric_limits<std::int64_t>::max()}; }
  [[nodiscard]] bool keeps_everything() const override { return true; }
};

[[maybe_unused]] const bool registered =
    FootprintRegistry::add<Full>({"full", "keeps every token", "paged KV cache: Kwon et al. 2023, arXiv:2309.06180"});

}  // namespace

}  // namespace kvlab
