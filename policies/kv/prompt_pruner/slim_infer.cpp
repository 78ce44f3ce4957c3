#include <algorithm>

#include "kernels/score/head_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "policies/kv/prompt_pruner/prune_stages.h"

namespace kvlab {

namespace {

// Ours: sizes, stages, and a block's score, its best unit's, mean over heads. First block and last tokens remain.
class SlimInfer final : public PromptPruner {
 public:
  explicit SlimInfer(Params& p)
      : stages_(p, "0.3334=0.6 0.5=0.4 0.6667=0.25"),
        unit_(p.optional<std::int32_t>("unit_tokens", 16, 1, 1 << 12, "tokens whose mean key is compared with the query")),
        units_(p.optional<std::int32_t>("units_per_block", 4, 1, 1 << 10, "units that are dropped together")),
        recent_(p.optional<std::int32_t>("recent_tokens", 256, 1, 1 << 20, "last tokens that always go on")) {}

  [[nodiscard]] Ends ends(std::int32_t prompt_tokens) const override {
    return {std::min(prompt_tokens, block()), prompt_tokens - std::min(prompt_tokens, block()) - blocks(prompt_tokens) * block()};
  }
  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t left = stages_.after(model, layer, prompt_tokens);
    if (left == prompt_tokens) return tokens;
    const Ends always = ends(prompt_tokens);
    const std::int32_t ends_tokens = always.first + always.last;
    return std::min(tokens, ends_tokens + std::max(0, left - ends_tokens) / block() * block());
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    const std::int32_t sequences = step.kv.num_sequences();
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores, HeadScores::Kind::kLogits});
    std::int32_t *begin = step.ops.host_ints(sequences), *len = step.ops.host_ints(sequences);
    for (std::int32_t s = 0; s < sequences; ++s) {
      const Ends always = ends(step.seqs[static_cast<std::size_t>(s)].end());
      begin[s] = always.first;
      len[s] = static_cast<std::int32_t>(first[s + 1] - first[s]) - always.first - always.last;
    }
    step.ops(Pool1d{sequences, first, begin, len, scores, block(), Pool1d::Kind::kBestUnit, false, unit_});
  }

 private:
  [[nodiscard]] std::int32_t block() const { return unit_ * units_; }
  [[nodiscard]] std::int32_t blocks(std::int32_t prompt_tokens) const { return std::max(0, prompt_tokens - block() - recent_) / block(); }

  PruneStages stages_;
  std::int32_t unit_, units_, recent_;
};

KVLAB_REGISTER(PromptPruner, SlimInfer, "slim_infer",
               "a few layers drop blocks of tokens whose units' mean keys match the last query least",
               "SlimInfer: Long et al. 2025, arXiv:2508.06447, from its abstract; the rest is our definition");

}  // namespace

}  // namespace kvlab
