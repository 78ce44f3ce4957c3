#include "policies/kv/budget.h"

#include <algorithm>
#include <cmath>

namespace kvlab {

std::int32_t Budget::of(std::int32_t prompt_tokens) const {
  if (tokens > 0) return tokens;
  if (frac <= 0) return 0;
  const double share = frac * prompt_tokens;
  return std::max(1, static_cast<std::int32_t>(truncates ? std::floor(share) : std::nearbyint(share)));
}

}  // namespace kvlab
