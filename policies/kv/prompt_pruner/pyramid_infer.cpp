#include <cmath>
#include <numbers>

#include "policies/kv/prompt_pruner/prompt_pruner.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Layer l keeps the share ratio + (1 - ratio) (cos(pi l / L) + 1) / 2 of its older tokens.
class PyramidInfer final : public PromptPruner {
 public:
  explicit PyramidInfer(Params& p)
      : ratio_(p.optional<double>("ratio", 0.9, 0.01, 1, "share that the deepest layer would keep; layer 0 keeps all")),
        recent_(p.optional<double>("recent_frac", 0.2, 0, 1, "share of the prompt, and one token more, that always goes on and votes")),
        least_(p.optional<std::int32_t>("least_tokens", 64, 0, 1 << 20, "a layer that would leave no more than this many drops none")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that always go on")),
        last_weight_(p.optional<double>("last_weight", 1.2, 0, 100, "weight of the last vote; the first has 1, others are between")) {}

  [[nodiscard]] Ends ends(std::int32_t prompt_tokens) const override {
    return {sinks_, std::min(prompt_tokens, 1 + static_cast<std::int32_t>(std::floor(recent_ * prompt_tokens)))};
  }
  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t recent = ends(prompt_tokens).last, context = tokens - recent;
    const double share = ratio_ + (1 - ratio_) * (std::cos(std::numbers::pi * layer / model.num_layers) + 1) / 2;
    const auto left = static_cast<std::int32_t>(std::floor(context * share + 1e-9));
    return left > least_ ? left + recent : tokens;
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    std::vector<Queries> recent;
    for (std::size_t s = 0; s < step.seqs.size(); ++s)
      recent.push_back(last_queries(step.in.step.subspan(s, 1), ends(step.seqs[s].end()).last, step.model).front());
    step.ops(AttentionStats{.kv = step.kv,
                            .queries = recent.data(),
                            .votes = {.last_weight = static_cast<float>(last_weight_), .first = first, .out = scores}});
  }

 private:
  double ratio_, recent_;
  std::int32_t least_, sinks_;
  double last_weight_;
};

KVLAB_REGISTER(PromptPruner, PyramidInfer, "pyramid_infer", "every layer drops the context tokens that recent tokens attend to least",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

}  // namespace

}  // namespace kvlab
