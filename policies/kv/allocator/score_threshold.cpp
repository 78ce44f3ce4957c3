#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/protect_op.h"
#include "policies/kv/allocator/allocator.h"

namespace kvlab {

namespace {

// Ignores the budget. With waiting tokens protected, like DMS without training (Lancucki et al. 2025, arXiv:2506.05345).
class ScoreThreshold final : public Allocator {
 public:
  explicit ScoreThreshold(Params& p)
      : min_score_(static_cast<float>(
            p.optional<double>("min_score", 1.0, -1e30, 1e30, "least score of a token that stays; protected ones always do"))),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "last tokens that stay whatever their score")) {}
  [[nodiscard]] bool layers_alike() const override { return true; }

  void allocate(Ops& ops, const ModelShape&, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) override {
    for (ScoredLayer& l : layers) {
      const Ops::Frame frame(ops);
      if (recent_ > 0) {
        const auto sequences = static_cast<std::int64_t>(seqs.size());
        std::int32_t *begin = ops.host_ints(sequences), *end = ops.host_ints(sequences);
        for (std::size_t s = 0; s < seqs.size(); ++s) begin[s] = 0, end[s] = seqs[s].end() - recent_;
        ops(Protect{l.kv, begin, end, l.marks});
      }
      std::copy_n(l.kv.len, l.kv.num_rows, l.keep);  // bound
      ops(CountScores{l.kv.num_rows, l.kv.first, l.scores, CountScores::Kind::kAtLeast, min_score_, l.keep});
      ops.settle("score_threshold", l.layer, {l.keep, static_cast<std::size_t>(l.kv.num_rows)});
    }
  }
  [[nodiscard]] std::int32_t expected(const ModelShape&, std::int32_t, std::int32_t, std::int32_t, std::int32_t n) const override {
    return n;
  }
  [[nodiscard]] bool depends_on_data() const override { return true; }
  [[nodiscard]] FixesTokens fixes_tokens() const override { return recent_ > 0 ? FixesTokens::kSome : FixesTokens::kNone; }
  [[nodiscard]] bool splits_heads() const override { return true; }

 private:
  float min_score_;
  std::int32_t recent_;
};

KVLAB_REGISTER(Allocator, ScoreThreshold, "score_threshold", "all tokens whose score reaches a threshold",
               "CORM: Dai et al. 2024, arXiv:2404.15949");

}  // namespace

}  // namespace kvlab
