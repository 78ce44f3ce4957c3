#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/params.h"
#include "policies/kv/recipe.h"
#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// The replicas of one pool as an experiment describes them, with what their setup was read from.
struct PoolPlan : PoolSetup, SimCosts {
  CostSetup cost;
  Recipe recipe;                      // of its KV policy
  std::string lint;                   // command that prints the remarks on the profile
  bool has_eight_bit_copies = false;  // memory.swap_format
  bool is_hybrid = true;              // layers of several kinds keep as many tokens as their kind does
  std::int64_t encoder_bytes = 0;     // of a vision encoder, on each GPU
  std::string link_name;              // network, nvlink or pcie; given: by 'bytes_per_s'; "": its KV stays
};

// Reads the keys of one pool: model, hardware, profile, parallel, engine, scheduler, block_cache, order, predictor, max_model_len, memory,
// prefix_caching and kv_policy. Every policy and the cost model are made once, so that their errors appear here. p: the experiment, or a
// pool of it that falls back on the experiment. InputError with file:line:column.
// seed: of the run. is_only: there is no other pool, so that no dispatcher between pools asks for the predictor's estimates. remarks: what
// looks odd in the input is added. encoder_bytes: of a vision encoder on each of its GPUs, in addition to the weights; 0: none.
PoolPlan read_pool(Params& p, std::uint64_t seed, bool is_only, std::vector<std::string>& remarks, std::int64_t encoder_bytes = 0);

// The order or the scheduler asks for output lengths.
bool uses_predictor(const PoolSetup& pool);

// "prefill", "decode" or "both".
const char* role_name(const Roles& roles);

}  // namespace kvlab
