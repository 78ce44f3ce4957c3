#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runs/pool_plan.h"

namespace kvlab {

// Reads `memory` into pool.memory: a number of blocks, or what it is derived from. Returns the bytes of CPU memory for swapped KV. The
// scheduler and max_model_len are read before, since the largest step decides what is left for KV.
std::int64_t read_memory(Params& p, PoolPlan& pool);

// Reads `kv_policy`: the KV kept of each sequence. A block holds block_tokens as the policy stores them, so the same memory has more blocks
// if tokens are packed. After read_memory().
void read_kv_policy(Params& p, PoolPlan& pool, std::vector<std::string>& remarks);

// Reads `kv_policy` of a run that needs one for its `purpose`, such as "grade". Error with file:line:column: there is none.
Recipe read_named_recipe(Params& p, const std::string& purpose);
// Error with file:line:column: the recipe does not run in the engine.
void require_engine(const Params& p, const Recipe& recipe);

}  // namespace kvlab
