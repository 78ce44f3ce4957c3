#include "kernels/score/token_scores/token_scores.h"
#include "policies/kv/recent_groups.h"
#include "policies/kv/scorer/group_votes/group_votes.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Attention that the recent queries pay to the group of tokens before them, in decode: later queries count more, as in the prompt.
// PyramidInfer, Yang et al. 2024, arXiv:2405.12532. A sum per token takes the place of the attention rows that the authors keep: a group
// gets votes from the queries after it alone, and these are the recent ones when it is cut.
class RecentVotes final : public Scorer {
 public:
  explicit RecentVotes(Params& p)
      : groups_(p),
        last_weight_(p.optional<double>("last_weight", 1.2, 0, 100, "weight of the last vote; the first has 1, others are between")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = needs.cpu_only = true;
    return needs;
  }
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
    step.ops(GroupVotes{step.kv, queries.data(), base, recent, groups_.group_tokens, static_cast<float>(last_weight_), first_word()});
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
