#include <limits>

#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

// Section 3. Norms are shares of a window of neighbours.
class Cur final : public Scorer {
  enum class Leverage : std::uint8_t { kProduct, kMean, kKey, kValue };

 public:
  explicit Cur(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 16, 1, 1 << 20, "neighbours that norms are relative to")),
        local_(p.choice("relative_to", {{"window", true}, {"prompt", false}}, true, "norms are shares of their window, or of the prompt")),
        leverage_(p.choice(
            "leverage", {{"product", Leverage::kProduct}, {"mean", Leverage::kMean}, {"key", Leverage::kKey}, {"value", Leverage::kValue}},
            Leverage::kProduct, "of key and value: their product, their mean, or one of them")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens, always kept")) {}

  [[nodiscard]] Protected protects() const override { return {sinks_, 0}; }

  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    const bool both = leverage_ == Leverage::kProduct || leverage_ == Leverage::kMean;
    float* values = both ? step.ops.floats(kv.total()) : scores;
    if (leverage_ != Leverage::kValue) step.ops(TokenNorms{kv, TokenNorms::Of::kKey, TokenNorms::Kind::kL2Squared, scores});
    if (leverage_ != Leverage::kKey) step.ops(TokenNorms{kv, TokenNorms::Of::kValue, TokenNorms::Kind::kL2Squared, values});
    if (local_) share(step, scores, window_);
    if (local_ && both) share(step, values, window_);
    if (both) {
      const bool adds = leverage_ == Leverage::kMean;
      step.ops(ScoreMap{kv.num_rows, kv.first, adds ? ScoreMap::Kind::kPlus : ScoreMap::Kind::kTimes, scores, 1.0F, 0.0F, true, values,
                        nullptr, scores});
    }
    share(step, scores, std::numeric_limits<std::int32_t>::max());
  }

 private:
  static void share(LayerStep& step, float* scores, std::int32_t window) {
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, nullptr, step.kv.len, scores, window, Pool1d::Kind::kShare});
  }

  std::int32_t window_;
  bool local_;
  Leverage leverage_;
  std::int32_t sinks_;
};

KVLAB_REGISTER(Scorer, Cur, "cur", "squared key norm times squared value norm, relative to neighbours",
               "CurDKV: Sengupta et al. 2025, arXiv:2509.15038");

}  // namespace

}  // namespace kvlab
