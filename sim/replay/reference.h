#pragma once

#include <cstdint>
#include <vector>

#include "traces/attention_trace.h"

namespace kvlab {

// The attention of each decode step of a trace with the full cache: the reference that policies are measured against. Computed once per
// trace, with the same kernel and in the same step order as a policy's attention, so that a policy that keeps everything agrees to the last
// bit.
struct AttentionReference {
  std::int32_t num_steps = 0;  // decode steps, tokens prompt_tokens .. num_tokens - 1
  std::int32_t top_k = 0;

  // Per (layer, step): probabilities [q_heads, tokens seen], outputs [q_heads, head_dim], and positions [q_heads, min(top_k, tokens seen)]
  // of the most attended tokens.
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

}  // namespace kvlab
