#include "kernels/score/token_scores_op.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// The temperature rises from 1 to 2 during decode.
class GumbelAttention final : public Scorer {
 public:
  explicit GumbelAttention(Params& p)
      : max_new_(p.optional<std::int32_t>("max_new_tokens", 512, 1, 1 << 20, "decode steps until the temperature is 2 and stays")),
        recent_frac_(p.optional<double>("recent_frac", 0.5, 0.0, 1.0, "share of the budget for the latest tokens")) {}
  [[nodiscard]] bool is_order_free(const FewTokens&) const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .cpu_only = "draws its noise in double precision"}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  [[nodiscard]] Protected protects() const override { return {0, 0, false, recent_frac_}; }

  void observe(LayerStep& step) override {
    std::int32_t* steps = step.ops.host_ints(static_cast<std::int64_t>(step.seqs.size()));
    for (std::size_t s = 0; s < step.seqs.size(); ++s) steps[s] = std::clamp(step.seqs[s].end() - step.seqs[s].prompt_tokens, 0, max_new_);
    step.ops(TokenStats{.kv = step.kv,
                        .queries = step.in.step.data(),
                        .first_word = first_word(),
                        .noise_seeds = sequence_seeds(step),
                        .noise_steps = steps,
                        .temperature_per_step = 1.0F / static_cast<float>(max_new_)});
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kSum, first_word(), 0, end_positions(step), nullptr, scores});
  }

 private:
  std::int32_t max_new_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, GumbelAttention, "gumbel_attention", "accumulated attention of noisy logits",
               "Keyformer: Adnan et al. 2024, arXiv:2403.09054");

}  // namespace

}  // namespace kvlab
