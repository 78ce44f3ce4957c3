#include <algorithm>

#include "kernels/score/head_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/prompt_pruner/prune_stages.h"

namespace kvlab {

namespace {

// Mean over heads without a softmax, smoothed. The last token remains and counts as 0 for its neighbors.
class PromptDistill final : public PromptPruner {
 public:
  explicit PromptDistill(Params& p)
      : stages_(p, "0.4375=1024"), pool_(p.optional<std::int32_t>("pool_tokens", 5, 1, 1023, "neighbours averaged, odd; 1: none")) {
    if (pool_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t left = stages_.after(model, layer, prompt_tokens);
    return left == prompt_tokens ? tokens : std::min(tokens, left + 1);
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    const std::int32_t sequences = step.kv.num_sequences();
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores, HeadScores::Kind::kLogits});
    if (pool_ == 1) return;
    std::int32_t *context = step.ops.host_ints(sequences), *end = step.ops.host_ints(sequences);
    for (std::int32_t s = 0; s < sequences; ++s) {
      end[s] = static_cast<std::int32_t>(first[s + 1] - first[s]);
      context[s] = end[s] - 1;
    }
    step.ops(ScoreMap::fill(sequences, first, context, end, 0.0F, 0.0F, scores));
    step.ops(Pool1d{sequences, first, nullptr, context, scores, pool_, Pool1d::Kind::kAvg});
  }

 private:
  PruneStages stages_;
  std::int32_t pool_;
};

KVLAB_REGISTER(PromptPruner, PromptDistill, "prompt_distill", "one layer selects by the products of the prompt's last query with keys",
               "PromptDistill: Jin et al. 2025, arXiv:2503.23274");

}  // namespace

}  // namespace kvlab
