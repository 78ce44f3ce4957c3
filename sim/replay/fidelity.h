#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "policies/kv/cache/kv_store.h"
#include "sim/replay/replay.h"

namespace kvlab {

// One KV head and decode step.
struct AttendedRow {
  const std::vector<Segment>& segments;
  std::int32_t row = 0;
  const float* probability = nullptr;  // [group, tokens of all segments]
  const float* output = nullptr;       // [q_heads, head_dim]
};

// Mean over its query heads. Tokens that represent others (with log-weight) count in the output only, not in mass, recall and KL.
Fidelity fidelity_of_row(const AttendedRow& attended, const AttentionReference::Step& full, const ModelShape& model,
                         const std::vector<std::pair<std::int32_t, std::int32_t>>& needles);

// In each step that looks at needles (at least half as much as the most, means over heads and layers), at least half of the full cache's
// attention on needles is on attended tokens.
bool finds_needles(std::span<const Fidelity> steps);

}  // namespace kvlab
