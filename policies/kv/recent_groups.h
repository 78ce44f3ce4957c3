#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/config/param_reader.h"

namespace kvlab {

// PyramidInfer: decode cuts take tokens of the latest group before the recent ones. recent() is constant in decode.
struct RecentGroups {
  std::int32_t group_tokens;
  double recent_frac;

  explicit RecentGroups(Params& p)
      : group_tokens(group_of(p)),
        recent_frac(p.optional<double>("recent_frac", 0.2, 0, 1, "share of the prompt; that many tokens, and one more, are recent ones")) {}
  static std::int32_t group_of(Params& p) {
    return p.optional<std::int32_t>("group_tokens", 16, 1, 1 << 16, "tokens that compete, and decode steps between cuts");
  }
  [[nodiscard]] std::int32_t recent(std::int32_t prompt_tokens) const {
    return std::min(prompt_tokens, 1 + static_cast<std::int32_t>(std::floor(recent_frac * prompt_tokens)));
  }
};

}  // namespace kvlab
