#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "policies/kv/recipe/recipe.h"
#include "sim/cost/make_cost_model.h"
#include "sim/simulation.h"

namespace kvlab {

// A pool's setup with its source.
struct PoolPlan : PoolSetup, SimCosts {
  CostSetup cost;
  Recipe recipe;
  std::string lint;                   // lints the profile
  bool has_eight_bit_copies = false;  // memory.swap_format
  bool is_hybrid = true;              // layers keep tokens by kind
  std::int64_t encoder_bytes = 0;     // per GPU
  std::string link_name;              // network, nvlink, pcie, given (by 'bytes_per_s'); "": its KV stays
};

// Makes policies and cost model once to find errors. p: may fall back on the experiment. is_only: no dispatcher between pools can ask for
// predictions. encoder_bytes: a vision encoder's weights per GPU. Throws InputError.
PoolPlan read_pool(Params& p, std::uint64_t seed, bool is_only, std::vector<std::string>& remarks, std::int64_t encoder_bytes = 0);

// Order or scheduler asks for output lengths.
bool uses_predictor(const PoolSetup& pool);

// "prefill", "decode" or "both".
const char* role_name(const Roles& roles);

}  // namespace kvlab
