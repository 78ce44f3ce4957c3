#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/runs/accuracy/served_model.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/search.h"
#include "base/config/params.h"
#include "policies/kv/recipe/recipe.h"
#include "serving/encoders.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/vision_encoder.h"
#include "sim/cost_totals.h"
#include "sim/simulation.h"

namespace kvlab {

// Makes one at once to find errors early.
template <class Registry>
auto policy_factory(Params& p, const std::string& key, const std::string& fallback, const std::string& kind, const std::string& meaning,
                    const std::function<void(const std::string& name, Params& own)>& prepare = {}) {
  auto chosen = p.named(key, fallback, meaning);
  require_known<Registry>(p, key, chosen.first, kind);
  if (prepare) prepare(chosen.first, chosen.second);
  auto make = [name = chosen.first, params = chosen.second, kind] {
    Params own = params;
    return Registry::make(name, own, kind);
  };
  make();
  return make;
}

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

// policies/systems/NAME.yaml: parts for keys that an experiment lacks.
struct ServingSystem {
  std::string name;  // "": none
  // By priority: `system: {NAME: {...}}` of the experiment, then the file.
  struct Layer {
    Params parts;
    std::vector<std::pair<std::string, Params>> pools;  // by role: encode, prefill, decode, both
    [[nodiscard]] const Params* of_role(const std::string& role) const;
  };
  std::vector<Layer> layers;
  // In the file's order, one replica each.
  [[nodiscard]] std::vector<std::string> roles() const;
};

const std::set<std::string>& system_keys();
const std::set<std::string>& system_pool_keys();
const std::set<std::string>& system_encode_pool_keys();

// Throws InputError for an unknown system or key.
ServingSystem read_system(Params& p);

struct SystemCard {
  std::string name, summary, paper, confidence, notes;
  std::vector<std::pair<std::string, std::string>> parts;  // "dispatcher", "prefill scheduler", ...; value as YAML on one line
};
SystemCard load_system_card(const std::string& name);

// Ascending.
std::vector<std::string> system_names();

struct ImagePlan {
  std::int32_t tokens_each = 0;
  VisionEncoder encoder;
};

// Nullopt if `images` is absent. Throws InputError.
std::optional<ImagePlan> read_images(Params& p);

// Each replica is one GPU.
struct EncodePoolPlan : EncodePoolSetup {
  CostSetup cost;  // only its hardware is used
  std::string link_name;
};

// Reads all keys but role and replicas. first: of a pool with the model. images: null is refused.
EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first);

struct ServingPlan {
  SimSetup setup;
  std::vector<PoolPlan> pools;  // as setup.pools, or a single one
  std::optional<ImagePlan> images;
  std::vector<EncodePoolPlan> encode_pools;  // as setup.images.pools
  std::string system;                        // for keys left out; "": none
  CostSetup cost;                            // first pool
  std::vector<std::string> remarks;          // in the result's note
  TraceInput trace;
  bool has_facts = false;  // results by class and client
  std::optional<SearchPlan> search;
  Comparisons comparisons;
  Recipe recipe;
  bool has_samples = false;  // also replayed
  bool has_load_frac = false;
  double load_frac = 0;  // share of simulated capacity; 0: the trace's rate
  // Only used by the engine.
  ServedModel served;
  double temperature = 0;
  bool stays_awake = true;
};

// Reads all but `trace` (docs/experiments.md). Throws InputError.
ServingPlan read_serving_plan(Params& p, std::uint64_t seed);
// For a plan without pools. Throws InputError with an oracle block cache and several replicas.
void set_replicas(const Params& p, ServingPlan& plan, std::uint32_t replicas);
// With encode pools.
std::int64_t num_gpus(const ServingPlan& plan);
// Reads `trace`. Call last.
void read_requests(Params& p, ServingPlan& plan);

// Reads `pools`, else the single pool. Pools inherit from `own`, the experiment without its system, then from the system. p: both. Call
// after reading the dispatcher. Throws InputError.
void read_pools(Params& p, Params& own, const ServingSystem& system, ServingPlan& plan);

// Given, or the system's.
bool has_pools(const Params& p, const ServingSystem& system);

std::uint64_t num_replicas(const HostSetup& setup);
std::uint64_t num_ranks(const HostSetup& setup);

// By part and basis (docs/results.md): {"linear": {"measured": 0.41, "roofline": 0.02}, ...}, six decimals, no zeros.
nlohmann::ordered_json step_time_by_part(const StepShares& shares);

// Largest part first: "step time: linear 52 % (measured), head 3 to 4 % (80 % roofline, 20 % measured)". Ranges are over runs; bases are
// mean shares of the part. Omits shares below 0.5 %. "": none.
std::string step_time_line(const std::vector<nlohmann::ordered_json>& runs);

// If the KV policy's operations exceed 10 % of step time, else "". `name`: the recipe.
std::string remark_on_policy(const StepShares& shares, const std::string& name);

double share_with(const StepShares& shares, Basis basis);

// Profile, date and hash, with pool names if several.
std::string describe_cost_source(const ServingPlan& plan);
std::string describe_cost_source(const PoolPlan& pool);
// Advice if only the datasheet prices collectives above 10 % of step time, else "".
std::string remark_on_collectives(const CostSetup& cost, const StepShares& shares);
// If ranks span machines and the card has no network rate, else "".
std::string remark_on_network(const CostSetup& cost);
// If tp > 1 and the roofline prices over 10 % of step time, else "".
std::string remark_on_roofline(const CostSetup& cost, const StepShares& shares);
// Calibration goals missed by a pool's profile; "": none, or not measured by kvlab.
std::string calibration_failure_of(const ServingPlan& plan);

}  // namespace kvlab
