#include <algorithm>

#include "kernels/score/protect_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

class ProtectedSpan final : public ScorerWrapper {
 public:
  explicit ProtectedSpan(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "whitelist"}),
        begin_(p.optional<std::int32_t>("begin_tokens", 0, 0, 1 << 26, "position of the first token")),
        count_(p.required<std::int32_t>("span_tokens", 1, 1 << 26, "tokens that always stay")) {}

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    const std::int32_t sequences = step.kv.num_sequences();
    std::int32_t *begin = step.ops.host_ints(sequences), *end = step.ops.host_ints(sequences);
    std::fill_n(begin, sequences, begin_);
    std::fill_n(end, sequences, begin_ + count_);
    step.ops(Protect{step.kv, begin, end, scores, true});
  }

 private:
  std::int32_t begin_, count_;
};

KVLAB_REGISTER(Scorer, ProtectedSpan, "whitelist", "another score; the tokens of one span always stay",
               "The Pitfalls of KV Cache Compression: Chen et al. 2025, arXiv:2510.00231");

}  // namespace

}  // namespace kvlab
