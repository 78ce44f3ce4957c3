#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

inline constexpr double kScaleBits = 16;  // default

// Bits per weight; group <= 0: a row or more, negligible.
constexpr double share_of_group(double count, std::int64_t group) { return group > 0 ? count / static_cast<double>(group) : 0; }

// Throws InputError for an enabled key not in `keys` that may matter.
void check_quantization_keys(const Params& q, std::initializer_list<const char*> keys);
std::vector<std::string> modules_under(Params& q, std::initializer_list<const char*> keys);
std::int64_t read_group_size(Params& q, const char* key, std::int64_t fallback);

}  // namespace kvlab
