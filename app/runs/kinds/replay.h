#pragma once

#include "app/runs/summary_row.h"
#include "base/params.h"
#include "policies/kv/recipe.h"

namespace kvlab {

// The fields of a serving run on its KV policy's fidelity, replayed on the experiment's `samples`: recipe, budget_tokens, attention_mass,
// output_rel_err, topk_recall, resident_bytes_frac and family. Runs with equal recipe, samples, kv_bytes and seed share one replay.
// InputError with file:line:column, or naming recipe and sample.
Fields fidelity_fields(Params& p, const Recipe& recipe, std::uint64_t seed);

}  // namespace kvlab
