#pragma once

#include <span>
#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// Frequencies of the model's rotary object for parts that turn queries or keys themselves: radians per position of each pair of channels
// [num_sequences, head_dim / 2], each sequence as long as its step makes it and `more_tokens`. Empty without RoPE, and where nothing
// computes.
std::vector<float> rope_frequencies(const LayerStep& step, std::int64_t more_tokens);

// Null where there are none.
inline const float* or_null(const std::vector<float>& frequencies) { return frequencies.empty() ? nullptr : frequencies.data(); }

}  // namespace kvlab
