#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace kvlab
