#pragma once

#include <string>
#include <vector>

#include "app/runs/pool_plan.h"

namespace kvlab {

// Reads the keys of `memory` that set how KV is swapped: swap_group_blocks, swap_reuse, swap_keeps_turns, swap_overlap and swap_format.
// Returns true if CPU memory has KV in 8 bits.
bool read_swap(Params& memory, MemorySetup& setup);

// Sets the form and the cost of copies in 8 bits (ALISE): each channel of a block's K or V of one head is one group of codes, with zero and
// scale. Error with file:line:column: the model or the recipe stores KV in another form. After read_kv_policy().
void set_eight_bit_copies(Params& p, PoolPlan& pool);

// Notes settings without effect, since a KV policy changes sequences. After read_kv_policy().
void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks);

}  // namespace kvlab
