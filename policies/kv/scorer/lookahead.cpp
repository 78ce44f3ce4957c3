#include "kernels/pass_attention/pass_attention.h"
#include "kernels/pool1d/pool1d.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Attention of pseudo tokens, decoded ahead of the answer, to the prompt, together with that of the prompt's last queries, smoothed over
// neighbours. The pass "lookahead" is run for it. LAQ, Wang et al. 2025, arXiv:2505.20334; without a window LAQ, with one LAQ++.
class Lookahead final : public Scorer {
 public:
  explicit Lookahead(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 0, 4096, "last prompt queries that vote too; their tokens stay")),
        pool_(p.choice("pool", {"avg", "max", "none"}, 1, "how scores are smoothed over neighbouring tokens")),
        pool_tokens_(p.optional<std::int32_t>("pool_tokens", 7, 1, 1023, "neighbours pooled, odd")) {
    if (pool_tokens_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.pass = "lookahead";
    needs.window_queries = window_;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    PassAttention ahead;
    ahead.kv = step.kv;
    ahead.pass = step.in.pass;
    ahead.queries = PassAttention::Reduce::kSum;
    ahead.group = PassAttention::Group::kMean;
    ahead.scores = scores;
    step.ops(ahead);
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    if (window_ > 0) {
      AttentionStats stats;
      stats.kv = step.kv;
      stats.queries = window.data();
      stats.sum = scores;
      step.ops(stats);
    }
    if (pool_ == 2) return;
    std::int32_t* older = step.ops.host_ints(step.kv.num_rows);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) older[r] = std::max(0, step.kv.len[r] - window_);
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, older, scores, pool_tokens_, pool_ == 0 ? Pool1d::Kind::kAvg : Pool1d::Kind::kMax});
  }

 private:
  std::int32_t window_;
  std::size_t pool_;
  std::int32_t pool_tokens_;
};

KVLAB_REGISTER(Scorer, Lookahead, "lookahead", "attention of pseudo tokens decoded ahead, and of the prompt's last queries",
               "LAQ: Wang et al. 2025, arXiv:2505.20334");

}  // namespace

}  // namespace kvlab
