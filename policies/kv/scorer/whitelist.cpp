#include "policies/kv/scorer/protect_span/protect_span.h"
#include "policies/kv/scorer_wrapper.h"

namespace kvlab {

namespace {

// Tokens of one span, say an instruction in the system prompt, are never evicted (a whitelist).
class ProtectedSpan final : public ScorerWrapper {
 public:
  explicit ProtectedSpan(Params& p)
      : ScorerWrapper(p, "window_attention"),
        begin_(p.optional<std::int32_t>("begin_tokens", 0, 0, 1 << 26, "position of the first token")),
        count_(p.required<std::int32_t>("span_tokens", 1, 1 << 26, "tokens that always stay")) {}

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    step.ops(ProtectSpan{step.kv, begin_, begin_ + count_, scores});
  }

 private:
  std::int32_t begin_, count_;
};

KVLAB_REGISTER(Scorer, ProtectedSpan, "whitelist", "another score; the tokens of one span always stay",
               "The Pitfalls of KV Cache Compression: Chen et al. 2025, arXiv:2510.00231");

}  // namespace

}  // namespace kvlab
