#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/config/params.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/engine_times.h"
#include "sim/cost/hardware_spec.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"
#include "sim/cost/token_weave.h"

namespace kvlab {

class StepPrices;
struct Profile;

struct CostSetup {
  ModelSpec model;
  HardwareSpec hardware;
  Parallel parallel;
  std::optional<TokenWeaveRule> overlap;  // none: in sequence
  EngineTimes engine;
  std::string profile_name = "roofline", profile_hash, profile_date;  // empty for the roofline
  std::shared_ptr<const Profile> profile;                             // null: roofline
  std::shared_ptr<const Collectives> collectives;
  std::shared_ptr<const StepPrices> prices;  // shared by all runs
};

// Params::prefer: the search chooses `parallel.tp` if the file does not.
inline constexpr const char* kChosenTp = "tp that the search tries";

// Reads `model`, `hardware`, `profile`, `parallel` and `engine` (docs/cost-model.md). With a profile, its model and hardware are the
// defaults.
CostSetup read_cost_setup(Params& experiment);

// Cheap: tables are shared, caches are not. One object per thread.
std::unique_ptr<CostModel> make_cost_model(const CostSetup& setup);

// graphs: number of CUDA graphs that the engine captures.
struct LargestStep {
  std::int64_t tokens = 0, rows = 0, graphs = 0;
};

// Besides weights and KV: activations of the largest step or its logits, rotary table, graphs, CUDA context and libraries
// (docs/cost-model.md).
std::int64_t default_reserve_bytes(const CostSetup& setup, const LargestStep& step);

// floor((memory_frac * memory - weights - reserve) / page bytes) pages of a GPU, times the groups of GPUs that share a scheduler's tokens.
// A block has a page per full group (KvLayout). Throws InputError if no block fits.
std::int64_t derive_num_blocks(const CostSetup& setup, double memory_frac, std::int64_t reserve_bytes, std::int64_t block_tokens,
                               bool is_hybrid = true);

}  // namespace kvlab
