#include "policies/kv/disposal/merge_window/merge_window.h"

#include "kernels/score/token_scores/token_scores.h"
#include "kernels/score/token_stats/token_stats.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Values of dropped tokens are spread over the kept tokens that follow, with a probability that grows with the attention the token
// received in comparison with theirs. Attention is accumulated here, whatever the scorer.
class MergeIntoWindow final : public Merging {
 public:
  explicit MergeIntoWindow(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 1 << 20, "kept tokens that follow, over which a value is spread")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = true;
    return needs;
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void observe(LayerStep& step) override {
    TokenStats stats;
    stats.kv = step.kv;
    stats.queries = step.in.step.data();
    stats.first_word = first_word();
    step.ops(stats);
  }

  void dispose(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    TokenScores mass{step.kv, TokenScores::Kind::kSum, first_word()};
    mass.end_position = end_positions(step);
    mass.scores = step.ops.floats(step.kv.total());
    step.ops(mass);
    step.ops(MergeWindow{rows, window_, mass.scores, sequence_seeds(step)});
    compact(step, kept);
  }

 private:
  std::int32_t window_;
};

KVLAB_REGISTER(Disposal, MergeIntoWindow, "merge_window", "spreads values of dropped tokens over the kept ones that follow, by chance",
               "CaM: Zhang et al. 2024, section 3");

}  // namespace

}  // namespace kvlab
