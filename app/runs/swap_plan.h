#pragma once

#include <string>
#include <vector>

#include "app/runs/pool_plan.h"

namespace kvlab {

// Reads the keys of `memory` that set how KV is swapped: swap_group_blocks, swap_reuse, swap_keeps_turns, swap_overlap and swap_format.
// Returns true if CPU memory has KV in 8 bits.
bool read_swap(Params& memory, MemorySetup& setup);

// Sets size and cost of swapped KV in 8 bits (ALISE). Each channel of a block, per head and for K and V apart, is one quantization group
// with its own zero point and scale. Call it after read_kv_policy(). Error with file:line:column: the model or the recipe does not store
// 16-bit KV.
void set_eight_bit_copies(Params& p, PoolPlan& pool);

// Adds remarks on swap settings that have no effect because the KV policy evicts or rewrites tokens. Call it after read_kv_policy().
void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks);

}  // namespace kvlab
