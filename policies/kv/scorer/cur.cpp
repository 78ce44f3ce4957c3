#include <limits>

#include "kernels/score/chunk_pool/chunk_pool.h"
#include "kernels/score/score_map/score_map.h"
#include "kernels/score/token_norms/token_norms.h"
#include "policies/kv/part.h"

namespace kvlab {

namespace {

// Approximate leverage of a CUR decomposition: |k|^2 |v|^2, each as its share within windows of neighbouring tokens. CurDKV,
// Sengupta et al. 2025, section 3.
class Cur final : public Scorer {
 public:
  explicit Cur(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 16, 1, 1 << 20, "neighbours that norms are relative to")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, always kept")) {}

  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    float* values = step.ops.floats(kv.total());
    step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kL2Squared, scores});
    step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2Squared, values});
    for (float* x : {scores, values}) step.ops(ChunkPool{kv.num_rows, kv.first, nullptr, kv.len, x, window_, ChunkPool::Kind::kShare});
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, values, nullptr, scores});
    step.ops(ChunkPool{kv.num_rows, kv.first, nullptr, kv.len, scores, std::numeric_limits<std::int32_t>::max(), ChunkPool::Kind::kShare});
  }

 private:
  std::int32_t window_, sinks_;
};

KVLAB_REGISTER(Scorer, Cur, "cur", "squared key norm times squared value norm, relative to neighbours",
               "CurDKV: Sengupta et al. 2025, arXiv:2509.15038");

}  // namespace

}  // namespace kvlab
