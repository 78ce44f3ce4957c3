#pragma once

#include <string>

#include "app/runs/plan/pool_plan.h"
#include "sim/cost/kv_layout.h"

namespace kvlab {

// The memory of a pool with pool.recipe, which does not keep everything: its footprint, and blocks of its own size. Throws InputError at
// `kv_policy`.
void use_recipe(Params& p, const KvLayout& layout, PoolPlan& pool);

// Reads `kv_policy` of a run that needs one for its `purpose`, such as "grade". Error with file:line:column: there is none.
Recipe read_named_recipe(Params& p, const std::string& purpose);
// Error with file:line:column: the recipe does not run in the engine.
void require_engine(const Params& p, const Recipe& recipe);

}  // namespace kvlab
