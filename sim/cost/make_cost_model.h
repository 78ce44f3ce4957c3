#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/config/params.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/hardware_spec.h"
#include "sim/cost/model_spec.h"
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

// "tp: 4, or 2 x h200": fewest GPUs of this and a larger card that pass `fits`, up to 16; "": none.
std::string setups_that_fit(const CostSetup& setup, const std::function<bool(const CostSetup&)>& fits);

// One GPU's KV memory as in vLLM v1: groups of `group_layers` layers of one kind, each with its block table. A page holds a block's tokens
// in a group. Equal layers form one group.
struct KvLayout {
  std::int64_t group_layers = 0;
  std::int64_t page_bytes = 0;
  std::int64_t full_groups = 1;
  std::int64_t window = 0, window_groups = 0;  // in tokens; their groups
  std::int64_t state_groups = 0;
  std::int64_t state_pages = 0;  // per sequence

  [[nodiscard]] bool is_one_group() const { return window_groups == 0 && state_groups == 0; }
  [[nodiscard]] std::int64_t groups() const { return full_groups + window_groups + state_groups; }
};

// is_hybrid false: one group keeps all tokens; states are not counted.
KvLayout kv_layout(const ModelSpec& m, const Parallel& p, std::int64_t block_tokens, bool is_hybrid = true);

// While `new_tokens` are computed after `tokens`.
std::int64_t sequence_bytes(const KvLayout& layout, std::int64_t block_tokens, std::int64_t tokens, std::int64_t new_tokens);

// vLLM's logged "GPU KV cache size": tokens of a sequence if every group keeps all. Since v0.21 (vllm#40691) tokens of all longest requests
// that fit, equal for one group.
std::int64_t cache_tokens(const KvLayout& layout, std::int64_t pages, std::int64_t block_tokens);

}  // namespace kvlab
