#include "kernels/score/token_scores_op.h"
#include "policies/kv/recent_groups.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// A sum per token replaces stored attention rows.
class RecentVotes final : public Scorer {
 public:
  explicit RecentVotes(Params& p)
      : groups_(p),
        last_weight_(p.optional<double>("last_weight", 1.2, 0, 100, "weight of the last vote; the first has 1, others are between")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void observe(LayerStep& step) override {
    const std::int64_t sequences = step.kv.num_sequences();
    std::int32_t *base = step.ops.host_ints(sequences), *recent = step.ops.host_ints(sequences);
    std::vector<Queries> queries;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      const std::int32_t prompt = step.seqs[s].prompt_tokens;
      recent[s] = groups_.recent(prompt), base[s] = prompt - recent[s];
      queries.push_back(last_queries(step.in.step.subspan(s, 1), step.seqs[s].end() - base[s], step.model).front());
    }
    const auto last_weight = static_cast<float>(last_weight_);
    step.ops(AttentionStats{
        .kv = step.kv,
        .queries = queries.data(),
        .votes = {.last_weight = last_weight, .base = base, .recent = recent, .group_tokens = groups_.group_tokens, .word = first_word()}});
  }
  void score(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kSum, first_word(), 0, end_positions(step), nullptr, scores});
  }

 private:
  RecentGroups groups_;
  double last_weight_;
};

KVLAB_REGISTER(Scorer, RecentVotes, "recent_votes", "attention from the queries after a token's group, the later the more",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

}  // namespace

}  // namespace kvlab
