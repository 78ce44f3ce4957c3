#include <algorithm>

#include "kernels/score/head_scores_op.h"
#include "policies/kv/prompt_pruner/prune_stages.h"

namespace kvlab {

namespace {

// Mean over heads.
class LastAttention final : public PromptPruner {
 public:
  explicit LastAttention(Params& p) : stages_(p, "0.3=0.7 0.6=0.5 0.9=0.3") {}

  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    return std::min(tokens, stages_.after(model, layer, prompt_tokens));
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores});
  }

 private:
  PruneStages stages_;
};

KVLAB_REGISTER(PromptPruner, LastAttention, "last_attention", "a few layers drop the tokens that the prompt's last token attends to least",
               "LazyLLM: Fu et al. 2024, arXiv:2407.14057, without its auxiliary cache");

}  // namespace

}  // namespace kvlab
