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

// The machine of an experiment: the model, its GPUs, and the source of step times.
struct CostSetup {
  ModelSpec model;
  HardwareSpec hardware;
  Parallel parallel;
  std::optional<TokenWeaveRule> overlap;  // of all-reduces with computation; none: they follow one another
  EngineTimes engine;
  std::string profile_name = "roofline", profile_hash, profile_date;  // hash and date empty for the roofline
  std::shared_ptr<const Profile> profile;                             // null for the roofline
  std::shared_ptr<const Collectives> collectives;                     // shared as the prices are
  std::shared_ptr<const StepPrices> prices;                           // shared by all replicas and runs
};

// A fact of the experiment (Params::prefer): `parallel.tp` where the file does not state it, since a search chooses it.
inline constexpr const char* kChosenTp = "tp that the search tries";

// Reads model, hardware, profile and parallel of an experiment's top level:
//   model: llama-3.1-8b           a name in profiles/models, a config.json, or a folder that holds one
//   hardware: h100                a name in profiles/hardware, or a file
//   profile: roofline             or {bundle: {path}}, {vidur: {path}}, {kvlab: {path}}, {aisimulate: {system, backend, version}}
//   parallel: {tp: 1, pp: 1, dp: 1, ep: 1, overlap: none}
//   engine: {vllm: {version}}     a name in profiles/engines: the time that its host takes for a step
// With a profile, model and hardware default to those it was measured on.
CostSetup read_cost_setup(Params& experiment);

// Cheap: tables are shared, caches are the object's own. One object per rank.
std::unique_ptr<CostModel> make_cost_model(const CostSetup& setup);

// The largest step of a scheduler, and the number of CUDA graphs that its engine captures.
struct LargestStep {
  std::int64_t tokens = 0, rows = 0, graphs = 0;
};

// Memory beside weights and KV on each GPU: activations of the largest step or the logits of its rows, the rotary table, graphs, and a
// fixed share for the CUDA context and libraries (docs/cost-model.md states the formula).
std::int64_t default_reserve_bytes(const CostSetup& setup, const LargestStep& step);

// KV blocks of one scheduler: floor((memory_frac * memory - weights - reserve) / bytes of a page on one GPU) pages, times the groups of
// GPUs that share its tokens, of which a block has one for each group of layers that keep all tokens (KvLayout). InputError when not one
// block fits.
std::int64_t derive_num_blocks(const CostSetup& setup, double memory_frac, std::int64_t reserve_bytes, std::int64_t block_tokens,
                               bool is_hybrid = true);

}  // namespace kvlab
