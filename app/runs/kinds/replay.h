#pragma once

#include "app/runs/report/summary_row.h"
#include "base/config/params.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// Replays the KV policy on `samples`. Cached by recipe, samples, kv_bytes and seed. Throws InputError.
Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed);

}  // namespace kvlab
