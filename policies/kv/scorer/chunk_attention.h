#pragma once

#include <vector>

#include "base/config/param_reader.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "kernels/score/token_scores_op.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"
#include "policies/kv/scorer/standardize_op.h"
#include "policies/kv/step.h"

namespace kvlab {

// Non-causal attention inside a prompt chunk times the value norm, smoothed, standardised over a sequence's heads; 0 for decoded tokens.
class ChunkAttentionScore {
 public:
  explicit ChunkAttentionScore(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 256, 1, 1 << 16, "tokens that attend to one another")),
        pool_(p.optional<std::int32_t>("pool_tokens", 3, 1, 1023, "neighbours averaged, odd")),
        padded_(p.flag("padded", false, "a short last chunk is filled up with zeros that take part, as in kvpress")) {
    if (pool_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  void observe(LayerStep& step, std::int32_t channel) {
    prompt_.assign(step.in.step.begin(), step.in.step.end());
    for (std::size_t s = 0; s < step.seqs.size(); ++s)
      if (step.seqs[s].decoding()) prompt_[s].count = 0;
    step.ops(ChunkAttention{step.kv, prompt_.data(), chunk_, false, padded_, channel});
  }

  void score(LayerStep& step, std::int32_t channel, float* scores) const {
    const KvRows& kv = step.kv;
    float* norms = step.ops.floats(kv.total());
    step.ops(TokenScores{kv, TokenScores::Kind::kWord, channel, 0, nullptr, nullptr, scores});
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2, norms});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, norms, nullptr, scores});
    if (pool_ > 1) step.ops(Pool1d{kv.num_rows, kv.first, nullptr, kv.len, scores, pool_, Pool1d::Kind::kAvg});
    step.ops(Standardize{kv.num_sequences(), kv.kv_heads, kv.first, scores});
  }

 private:
  std::int32_t chunk_, pool_;
  bool padded_;
  std::vector<Queries> prompt_;
};

}  // namespace kvlab
