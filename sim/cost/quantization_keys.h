#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

inline constexpr double kScaleBits = 16;  // of one scale where the scheme does not say: the model's 16-bit type

// Bits of a weight's share of `count` bits that each group of `group` weights shares; group <= 0: one group per row or more, next to
// nothing.
constexpr double share_of_group(double count, std::int64_t group) { return group > 0 ? count / static_cast<double>(group) : 0; }

// InputError for a key of quantization_config that is none of `keys`, may change something and is not switched off.
void check_quantization_keys(const Params& q, std::initializer_list<const char*> keys);
// The modules that the keys list.
std::vector<std::string> modules_under(Params& q, std::initializer_list<const char*> keys);
std::int64_t read_group_size(Params& q, const char* key, std::int64_t fallback);

}  // namespace kvlab
