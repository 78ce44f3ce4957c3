#pragma once

#include <string>
#include <string_view>

#include "base/params.h"
#include "sim/cost/model_families.h"

namespace kvlab {

// A key that changes neither weights, KV nor FLOPs, whichever model has it.
bool is_harmless_model_key(std::string_view key);
// A key about pictures, sound or their tokens, found only in the outer part of a multimodal config.
bool is_multimodal_key(std::string_view key);
// A value that switches a feature off: false, 0, an empty text, list or mapping.
bool is_off(const std::string& yaml);

// InputError, with its place, for a key that may change weights, KV or FLOPs and that the family's reader does not read.
void check_model_keys(Params& p, const Family& family);

}  // namespace kvlab
