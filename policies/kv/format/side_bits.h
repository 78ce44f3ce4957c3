#pragma once

#include <cstdint>

#include "base/config/param_reader.h"

namespace kvlab {

// Per code.
struct SideBits {
  std::int32_t key = 0, value = 0;
};

// Reads `bits`, overridden by `key_bits` and `value_bits` (as K8V4 of KVTuner: Li et al. 2025, arXiv:2502.04420). Throws InputError if all
// three are given.
SideBits read_side_bits(Params& p, std::int32_t fallback, std::int32_t least, std::int32_t most);

}  // namespace kvlab
