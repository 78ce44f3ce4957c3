#pragma once

#include <string>
#include <vector>

#include "app/runs/plan/pool_plan.h"

namespace kvlab {

// Reads the swap_* keys of `memory`. Returns true if swapped KV has 8 bits.
bool read_swap(Params& memory, MemorySetup& setup);

// Size and cost of 8-bit swapped KV (ALISE), quantized per channel of a block and head. Call after read_kv_policy(). Throws InputError if
// KV is not stored in 16 bits.
void set_eight_bit_copies(Params& p, PoolPlan& pool);

// On swap settings disabled by a KV policy that evicts or rewrites tokens. Call after read_kv_policy().
void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks);

}  // namespace kvlab
