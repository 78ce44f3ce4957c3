#pragma once

#include <cmath>
#include <cstdint>

#include "base/ceil_div.h"

namespace kvlab {

// Expert MLPs on one rank: the group's `tokens`, each to experts_per_token of `experts`, spread evenly over `ranks` GPUs. Matrices:
// [intermediate, hidden].
struct MoeExpertsShape {
  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  std::int64_t experts = 1, experts_per_token = 1, ranks = 1;
  std::int64_t activation_bytes = 2;
  double weight_bits = 16;  // with the share of the scales
  bool gated = true;
};

// For uniform choices: E * (1 - (1 - k / E)^T).
inline double expected_experts(const MoeExpertsShape& s) {
  const double e = static_cast<double>(s.experts);
  return e * (1.0 - std::pow(1.0 - static_cast<double>(s.experts_per_token) / e, static_cast<double>(s.tokens)));
}
// Mean (token, expert) pairs, rounded up.
constexpr std::int64_t pairs_per_rank(const MoeExpertsShape& s) { return ceil_div(s.tokens * s.experts_per_token, s.ranks); }
constexpr std::int64_t weights_per_expert(const MoeExpertsShape& s) { return (s.gated ? 3 : 2) * s.hidden * s.intermediate; }

inline std::int64_t bytes(const MoeExpertsShape& s) {
  const double weights =
      expected_experts(s) / static_cast<double>(s.ranks) * static_cast<double>(weights_per_expert(s)) * s.weight_bits / 8.0;
  return std::llround(weights) + 2 * pairs_per_rank(s) * (s.hidden + s.intermediate) * s.activation_bytes;
}
constexpr std::int64_t flops(const MoeExpertsShape& s) { return 2 * pairs_per_rank(s) * weights_per_expert(s); }

}  // namespace kvlab
