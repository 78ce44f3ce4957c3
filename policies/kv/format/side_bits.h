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
inline SideBits read_side_bits(Params& p, std::int32_t fallback, std::int32_t least, std::int32_t most) {
  const bool has_key = p.has("key_bits"), has_value = p.has("value_bits");
  if (has_key && has_value && p.has("bits")) p.fail_at("bits", "'bits' changes nothing beside 'key_bits' and 'value_bits': leave it out");
  SideBits bits;
  if (!(has_key && has_value)) bits.key = bits.value = p.optional<std::int32_t>("bits", fallback, least, most, "of a code");
  if (has_key || p.is_describing())
    bits.key = p.optional<std::int32_t>("key_bits", bits.key, least, most, "of a code of K; 'bits' if left out");
  if (has_value || p.is_describing())
    bits.value = p.optional<std::int32_t>("value_bits", bits.value, least, most, "of a code of V; 'bits' if left out");
  return bits;
}

}  // namespace kvlab
