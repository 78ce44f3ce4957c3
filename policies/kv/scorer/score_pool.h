#pragma once

#include <algorithm>
#include <cstdint>

#include "base/config/param_reader.h"
#include "kernels/score/pool1d_op.h"
#include "policies/kv/step.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

enum class ScorePooling : std::uint8_t { kAvg, kMax, kNone };

class ScorePool {
 public:
  ScorePool(Params& p, ScorePooling pooling, std::int32_t tokens)
      : pooling_(p.choice("pool", {{"avg", ScorePooling::kAvg}, {"max", ScorePooling::kMax}, {"none", ScorePooling::kNone}}, pooling,
                          "how scores are smoothed over neighbouring tokens")),
        tokens_(p.optional<std::int32_t>("pool_tokens", tokens, 1, 1023, "neighbours pooled, odd")) {
    if (tokens_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  // Except each row's last newest_of(row) tokens.
  template <class NewestOf>
  void smooth(LayerStep& step, NewestOf&& newest_of, float* scores) const {
    if (pooling_ == ScorePooling::kNone) return;
    const std::int32_t* older = per_row(step, [&](std::int32_t r) { return std::max(0, step.kv.len[r] - newest_of(r)); });
    const Pool1d::Kind kind = pooling_ == ScorePooling::kAvg ? Pool1d::Kind::kAvg : Pool1d::Kind::kMax;
    step.ops(Pool1d{step.kv.num_rows, step.kv.first, nullptr, older, scores, tokens_, kind});
  }

 private:
  ScorePooling pooling_;
  std::int32_t tokens_;
};

}  // namespace kvlab
