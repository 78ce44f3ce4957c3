#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/runs/plan/serving_plan.h"
#include "policies/kv/footprint.h"
#include "sim/cost/make_cost_model.h"

namespace kvlab {

// Returns the CPU bytes for swapped KV. Call after the scheduler and max_model_len.
std::int64_t read_memory(Params& p, PoolPlan& pool);

// A block holds block_tokens as the policy stores them. Call after read_memory().
void read_kv_policy(Params& p, PoolPlan& pool, std::vector<std::string>& remarks);

inline constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;

// Reads the swap_* keys of `memory`. Returns true if swapped KV has 8 bits.
bool read_swap(Params& memory, MemorySetup& setup);

// Size and cost of 8-bit swapped KV (ALISE), quantized per channel of a block and head. Call after read_kv_policy(). Throws InputError if
// KV is not stored in 16 bits.
void set_eight_bit_copies(Params& p, PoolPlan& pool);

// On swap settings disabled by a KV policy that evicts or rewrites tokens. Call after read_kv_policy().
void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks);

// For a pool.recipe that does not keep everything: footprint and block size. Throws InputError at `kv_policy`.
void use_recipe(Params& p, const KvLayout& layout, PoolPlan& pool);

// Throws InputError without `kv_policy`, naming `purpose` ("grade").
Recipe read_named_recipe(Params& p, const std::string& purpose);
// Throws InputError if the engine cannot run the recipe.
void require_engine(const Params& p, const Recipe& recipe);

// Reuses released footprints with their cached results. `make`'s results must depend only on arguments. Thread-safe: each footprint has one
// user at a time.
std::function<std::unique_ptr<Footprint>()> lending(std::function<std::unique_ptr<Footprint>()> make);

}  // namespace kvlab
