#pragma once

#include <string>
#include <vector>

#include "app/runs/plan/pool_plan.h"

namespace kvlab {

// Reads swap_group_blocks, swap_reuse, swap_keeps_turns, swap_overlap and swap_format of `memory`. Returns true if swapped KV has 8 bits.
bool read_swap(Params& memory, MemorySetup& setup);

// Sets size and cost of 8-bit swapped KV (ALISE): K and V are quantized per channel of a block and head, with zero point and scale. Call
// after read_kv_policy(). Throws InputError with file:line:column if KV is not stored in 16 bits.
void set_eight_bit_copies(Params& p, PoolPlan& pool);

// Remarks on swap settings that the KV policy disables by evicting or rewriting tokens. Call after read_kv_policy().
void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks);

}  // namespace kvlab
