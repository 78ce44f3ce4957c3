#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "policies/kv/cache/kv_store.h"
#include "sim/replay/replay.h"
#include "traces/attention_trace.h"

namespace kvlab {

// Full-cache decode, in a policy's kernel and step order, so keeping everything agrees bit for bit.
struct AttentionReference {
  std::int32_t num_steps = 0;  // prompt_tokens .. num_tokens - 1
  std::int32_t top_k = 0;

  // Per (layer, step): [q_heads, tokens], [q_heads, head_dim], most attended positions [q_heads, min(top_k, tokens)].
  struct Step {
    std::int32_t tokens = 0;
    std::vector<float> probability, output;
    std::vector<std::int32_t> top;
  };
  std::vector<Step> steps;  // [num_layers * num_steps]
  [[nodiscard]] const Step& at(std::int32_t layer, std::int32_t step) const {
    return steps[static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_steps) + static_cast<std::size_t>(step)];
  }
};

AttentionReference full_attention(const AttentionTrace& trace, std::int32_t top_k = 32);

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
