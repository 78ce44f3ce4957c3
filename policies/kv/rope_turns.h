#pragma once

#include <vector>

#include "policies/kv/step.h"

namespace kvlab {

// Radians per position [num_sequences, head_dim / 2], for lengths after the step plus `more_tokens`. Empty without RoPE or on shapes.
inline std::vector<float> rope_frequencies(const LayerStep& step, std::int64_t more_tokens) {
  std::vector<float> all;
  if (step.model.rope.base == 0 || !step.ops.computes()) return all;
  const Rotary rotary(step.model.rope, step.model.head_dim);
  for (const SeqStep& seq : step.seqs) {
    const std::vector<float> own = rotary.frequencies(seq.end() + more_tokens);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

inline const float* or_null(const std::vector<float>& frequencies) { return frequencies.empty() ? nullptr : frequencies.data(); }

}  // namespace kvlab
