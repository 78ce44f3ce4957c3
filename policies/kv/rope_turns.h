#pragma once

#include <span>
#include <vector>

#include "policies/kv/step.h"

namespace kvlab {

// Radians per position [num_sequences, head_dim / 2], for lengths after the step plus `more_tokens`. Empty without RoPE or on shapes.
std::vector<float> rope_frequencies(const LayerStep& step, std::int64_t more_tokens);

inline const float* or_null(const std::vector<float>& frequencies) { return frequencies.empty() ? nullptr : frequencies.data(); }

}  // namespace kvlab
