#pragma once

#include <string>

#include "app/runs/report/summary_row.h"
#include "base/config/params.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// Replays the KV policy on `samples`. Cached by recipe, samples, kv_bytes and seed. Throws InputError.
Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed);

// Group in tables and figures: by how tokens are chosen, else by what is done to them.
std::string family_of(const Recipe& recipe);

}  // namespace kvlab
