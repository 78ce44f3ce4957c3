#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "policies/kv/kv_store.h"
#include "sim/replay/replay.h"

namespace kvlab {

// The tokens that one KV head attended to in a decode step, and the result.
struct AttendedRow {
  const std::vector<Segment>& segments;
  std::int32_t row = 0;
  const float* probability = nullptr;  // [group, tokens over all segments]
  const float* output = nullptr;       // [q_heads, head_dim]
};

// Compares with the full cache, averaged over the head's query heads. Tokens that represent others (segments with a log-weight) take part
// in the output, but not in mass, recall and KL, which are about the recorded tokens.
Fidelity fidelity_of_row(const AttendedRow& attended, const AttentionReference::Step& full, const ModelShape& model,
                         const std::vector<std::pair<std::int32_t, std::int32_t>>& needles);

// Would decode steps find in the needles what the full cache looks up there? An answer read from the prompt is a chain of such look-ups and
// breaks at its weakest: of each step that looks there (with at least half of the attention of the one that looks most, means over heads
// and layers) at least half of the full cache's attention on needles falls on tokens attended to. True where no step looks.
bool finds_needles(std::span<const Fidelity> steps);

}  // namespace kvlab
