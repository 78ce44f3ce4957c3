#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runs/plan/pool_plan.h"

namespace kvlab {

// Returns the CPU bytes for swapped KV. Call after the scheduler and max_model_len.
std::int64_t read_memory(Params& p, PoolPlan& pool);

// A block holds block_tokens as the policy stores them. Call after read_memory().
void read_kv_policy(Params& p, PoolPlan& pool, std::vector<std::string>& remarks);

inline constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;

}  // namespace kvlab
