#pragma once

#include <string>
#include <string_view>

#include "base/config/params.h"
#include "sim/cost/model_families.h"

namespace kvlab {

// Never changes weights, KV or FLOPs.
bool is_harmless_model_key(std::string_view key);
// On images or sound; only in the outer part of a multimodal config.
bool is_multimodal_key(std::string_view key);
// False, 0, and empty text, list or mapping.
bool is_off(const std::string& yaml);

// Throws InputError with its place for an unread key that may change weights, KV or FLOPs.
void check_model_keys(Params& p, const Family& family);

}  // namespace kvlab
