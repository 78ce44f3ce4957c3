#include <limits>

#include "kernels/score/pool1d_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

// Section 4. Mean over KV heads; decoded tokens by their page's mean, never the newest page.
class ValueKeyNorm final : public Scorer {
 public:
  explicit ValueKeyNorm(Params& p)
      : page_(p.optional<std::int32_t>("page_tokens", 16, 1, 1 << 16, "tokens of a page, freed together in decode")),
        shared_(p.choice("heads", {{"shared", true}, {"own", false}}, true, "one set for all KV heads, or one each")) {}

  // Whole pages leave, so whole pages stay.
  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike && few.unit == page_; }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    float* keys = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, scores});
    step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kL2, keys});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kOver, scores, 1.0F, 0.0F, true, keys, nullptr, scores});
    if (shared_) step.ops(ReduceHeads{kv, ReduceHeads::Kind::kMean, scores});
    std::int32_t *paged = step.ops.host_ints(kv.num_rows), *newest = step.ops.host_ints(kv.num_rows);
    bool decodes = false;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const bool decoding = step.seqs[static_cast<std::size_t>(kv.sequence(r))].decoding();
      newest[r] = decoding && kv.len[r] > 0 ? (kv.len[r] - 1) / page_ * page_ : kv.len[r];
      paged[r] = decoding ? newest[r] : 0;
      decodes |= decoding;
    }
    if (!decodes) return;
    step.ops(Pool1d{kv.num_rows, kv.first, nullptr, paged, scores, page_, Pool1d::Kind::kMean});
    step.ops(ScoreMap::fill(kv.num_rows, kv.first, newest, kv.len, std::numeric_limits<float>::infinity(), 0.0F, scores));
  }

 private:
  std::int32_t page_;
  bool shared_;
};

KVLAB_REGISTER(Scorer, ValueKeyNorm, "value_key_norm", "value norm over key norm, by whole pages in decode",
               "PagedEviction: Chitty-Venkata et al. 2025, arXiv:2509.04377");

}  // namespace

}  // namespace kvlab
