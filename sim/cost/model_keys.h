#pragma once

#include <string>
#include <string_view>

#include "base/config/params.h"
#include "sim/cost/model_families.h"

namespace kvlab {

// True if the key never changes weights, KV or FLOPs.
bool is_harmless_model_key(std::string_view key);
// True for keys on images or sound, which only the outer part of a multimodal config has.
bool is_multimodal_key(std::string_view key);
// True for false, 0, and empty text, list or mapping.
bool is_off(const std::string& yaml);

// Throws InputError, with its place, for a key that may change weights, KV or FLOPs and that the family's reader does not read.
void check_model_keys(Params& p, const Family& family);

}  // namespace kvlab
