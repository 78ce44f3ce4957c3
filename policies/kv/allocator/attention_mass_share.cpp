#include "kernels/allocate/count_scores_op.h"
#include "kernels/allocate/rank_means/rank_means.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// The paper samples queries. A layer's heads keep equal counts, by their mean at each rank, and at least the budget.
class AttentionMassShare final : public Allocator {
 public:
  explicit AttentionMassShare(Params& p)
      : tau_(p.optional<double>("tau", 0.975, 0, 1, "share of the attention that stays")),
        window_(p.optional<std::int32_t>("window_tokens", 128, 1, 4096, "last prompt queries that are looked at")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] bool depends_on_data() const override { return true; }

  void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      const Ops::Frame frame(ops);
      const std::int32_t sequences = l.kv.num_sequences();
      const std::vector<Queries> window = last_queries(l.in->window, window_, model);
      LayerStep step{ops, model, l.layer, seqs, l.kv, *l.in};
      float* sums = ops.floats(l.kv.total());
      sum_attention(step, window.data(), sums);
      std::int64_t* first = ops.host_longs(sequences + 1);
      std::int32_t* counts = ops.host_ints(sequences);
      first[0] = 0;
      for (std::int32_t s = 0; s < sequences; ++s) {
        counts[s] = shortest_row(l.kv, s);  // bound
        first[s + 1] = first[s] + counts[s];
      }
      float* ranked = ops.floats(first[sequences]);
      ops(RankMeans{sequences, l.kv.kv_heads, l.kv.first, sums, first, ranked});
      ops(CountScores{sequences, first, ranked, CountScores::Kind::kLeadingMass, tau_, counts});
      for (std::int32_t s = 0; s < sequences; ++s) keep_alike(l, s, std::max(counts[s], l.target[s]));
      ops.settle("attention_mass_share", l.layer, all_counts(l));
    }
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }

 private:
  double tau_;
  std::int32_t window_;
};

KVLAB_REGISTER(Allocator, AttentionMassShare, "attention_mass_share", "a layer keeps as many tokens as hold a share of its attention",
               "ZipVL: He et al. 2024, arXiv:2410.08584");

}  // namespace

}  // namespace kvlab
