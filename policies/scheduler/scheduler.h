#pragma once

#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/config/registry.h"
#include "base/ids.h"
#include "base/time.h"
#include "policies/request.h"

namespace kvlab {

// The value of a request; `values` grows with the highest slot.
template <class T>
T& slot(std::vector<T>& values, RequestId r) {
  if (values.size() <= index(r)) values.resize(index(r) + 1);
  return values[index(r)];
}

// Bit l is layer l.
inline constexpr std::int32_t kMostLayers = 256;
using LayerSet = std::bitset<kMostLayers>;

// `tokens` new tokens through layers [layer_begin, layer_end); layer_end 0: to the last. Tokens that stop early count as not computed and
// continue in a later step.
struct StepEntry {
  RequestId request{};
  std::int32_t tokens = 0;
  std::int32_t padded_tokens = 0;  // rows with padding; 0: = tokens
  std::int32_t layer_begin = 0, layer_end = 0;
  std::int32_t layer_set = 0;  // 1 + index in StepPlan::layer_sets; 0: all layers
  // Set by the host at commit:
  std::int32_t kv_before = 0;  // cached tokens attended to
  std::int32_t computed_before = 0;
  bool emits = false;          // its last token's logits give a token
  bool leaves_hashed = false;  // old blocks are freed when the output is processed
  bool ends_prompt = false;    // FootprintStep
  // Set by the scheduler: tokens leave the model at layer_end.
  bool exits_early = false;

  [[nodiscard]] bool ends() const { return layer_end == 0 || exits_early; }
  [[nodiscard]] bool passes_all_layers() const { return layer_begin == 0 && layer_end == 0 && layer_set == 0; }
};

// Rows of one token each, set by the host. kv: cached tokens.
struct DecodeRows {
  std::int32_t count = 0, counted = 0;  // counted: with recorded token gaps
  std::int32_t kv_min = 0, kv_max = 0;
  std::int64_t kv_tokens = 0, kv_squares = 0;  // sums of kv and kv^2
  std::vector<std::int32_t> kv = {};           // of each, if the device wants it
};

struct StepPlan {
  DecodeRows decodes;  // before the entries
  std::vector<StepEntry> entries;
  // Finished rows of a static batch.
  std::int32_t idle_rows = 0;
  std::vector<LayerSet> layer_sets;
  // Above 0: layer l has the weights of layer l % loop_layers, and an entry passes each at most once per step.
  std::int32_t loop_layers = 0;

  void clear() {
    entries.clear();
    layer_sets.clear();
    decodes = {};
    idle_rows = loop_layers = 0;
  }
  [[gnu::always_inline]] void add(RequestId request, std::int32_t tokens) { entries.push_back({request, tokens}); }
  // Of requests.
  [[nodiscard]] std::size_t num_rows() const { return entries.size() + static_cast<std::size_t>(decodes.count); }
  [[nodiscard]] bool is_empty() const { return num_rows() == 0 && idle_rows == 0; }
};

// kSwap frees blocks at once; the planned step waits for the copy. kSwapAhead frees them after the copy; no step waits. kKeep: blocks stay
// until the request runs again or the order puts it away.
enum class Preemption : std::uint8_t { kRecompute, kSwap, kSwapAhead, kKeep };
enum class QueueEnd : std::uint8_t { kFront, kBack };

// Decode rows and a piece of one prompt.
struct StepOutline {
  std::int32_t decodes = 0;
  std::int64_t decode_kv_tokens = 0;
  std::int32_t prompt_tokens = 0, prompt_kv_before = 0;
};

// A plan takes and returns memory only by these calls. computed_tokens advance after plan() returns.
class ReplicaView {
 public:
  virtual ~ReplicaView() = default;
  [[nodiscard]] virtual Time now() const = 0;
  [[nodiscard]] virtual std::uint32_t num_waiting() const = 0;
  [[nodiscard]] virtual RequestId waiting(std::uint32_t position) const = 0;  // by the order; 0: head
  [[nodiscard]] virtual std::span<const RequestId> running() const = 0;       // in admission order
  [[nodiscard]] virtual const Request& info(RequestId r) const = 0;
  // ---- as in policies/order/order.h ----
  [[nodiscard]] virtual RequestId victim(RequestId usual) const = 0;
  [[nodiscard]] virtual bool precedes(RequestId a, RequestId b) const = 0;
  // none: never.
  [[nodiscard]] virtual std::optional<Preemption> overtaking() const = 0;
  [[nodiscard]] virtual bool overtakes(RequestId waiting, RequestId running) const = 0;
  virtual Preemption take_off(std::vector<RequestId>& /*off*/) { return Preemption::kRecompute; }
  virtual bool holds(RequestId /*r*/) { return false; }
  // Total output tokens; the true number without a predictor.
  virtual std::int32_t predicted_output(RequestId r) { return info(r).output_limit; }
  // Host time included; none: no estimate.
  virtual std::optional<Span> step_time(const StepOutline& /*outline*/) { return std::nullopt; }
  // ---- memory and queues ----
  // Tokens r could compute in this step. 0 if in-flight tokens reach its output limit, or while its step is in flight on hosts that do not
  // plan over unknown tokens.
  [[nodiscard]] virtual std::int32_t needed_tokens(RequestId r) const = 0;
  [[nodiscard]] virtual std::int32_t max_model_len() const = 0;
  [[nodiscard]] virtual std::int32_t block_tokens() const = 0;
  [[nodiscard]] virtual std::int64_t num_blocks() const = 0;               // usable
  [[nodiscard]] virtual std::int64_t free_blocks() const = 0;              // unreferenced, cached included
  [[nodiscard]] virtual std::int64_t leaving_blocks() const { return 0; }  // free after copies under way (kSwapAhead)
  [[nodiscard]] virtual std::int64_t num_cpu_blocks() const { return 0; }  // for swapped blocks
  [[nodiscard]] virtual std::int64_t free_cpu_blocks() const { return 0; }
  // Without hits.
  [[nodiscard]] virtual std::int64_t blocks_for(RequestId r, std::int32_t n) const = 0;
  // With unreferenced hits of a waiting r.
  [[nodiscard]] virtual std::int64_t blocks_needed(RequestId r, std::int32_t m) = 0;
  // Most blocks of r while its known tokens are prefilled.
  [[nodiscard]] virtual std::int64_t peak_blocks(RequestId r) const = 0;
  // At most n - 1, until the pool changes.
  virtual std::int32_t lookup(RequestId r) = 0;
  // All or nothing. `ahead` later tokens get blocks without a hash. A waiting r with nothing computed first takes its hits, which count as
  // computed in addition to m.
  virtual bool try_allocate(RequestId r, std::int32_t m, std::int32_t ahead = 0) = 0;
  // try_allocate() for m tokens that several steps compute, some layers each. The blocks get hashes by try_allocate(r, m) in the plan of
  // the last step, which takes no block.
  virtual bool try_hold(RequestId r, std::int32_t m, std::int32_t ahead = 0) = 0;
  // One token for each of the first running requests, if at most `most` and memory suffices for all; else the plan stays as it is. Call it
  // before entries are added. Returns the number of requests that then need no entry: planned ones, and ones with all tokens in flight.
  virtual std::size_t plan_decodes(StepPlan& /*plan*/, std::int32_t /*most*/) { return 0; }
  // Contiguous managers: `tokens` tokens in all.
  virtual bool try_reserve(RequestId r, std::int32_t tokens) = 0;
  virtual void admit(RequestId r) = 0;  // to the end of running
  virtual void preempt(RequestId r, Preemption mode, QueueEnd end = QueueEnd::kFront) = 0;
  // A waiting r preempted by kKeep leaves the GPU in `mode`.
  virtual void put_away(RequestId /*r*/, Preemption /*mode*/) {}
  // Starts to swap in a waiting r with room for its kept tokens and m more, all or nothing. r keeps its place and is parked until the copy
  // ends; then is_swapped is false. joins: the plan admits r if it is there; r is not parked if the step may wait (SwapSetup::Overlap). An
  // r with nothing computed comes from the prompt stores if they hold more than the prefix cache; else returns true.
  virtual bool try_swap_in(RequestId r, std::int32_t m, bool joins = false) = 0;
  virtual void reject(RequestId r, const char* reason) = 0;  // with an error, counted
};

// Later plans that would equal this one (one token per running request, same order) if nothing arrives, finishes, fails to allocate or
// returns blocks. Fast-forward may skip them.
struct Horizon {
  std::int64_t plans = 0;
  // While requests wait, the first loss of a cached block also ends it. Needed if a head may take less with fewer hits.
  bool ends_with_hits = true;
  [[nodiscard]] constexpr Horizon within(const Horizon& other) const {
    return {plans < other.plans ? plans : other.plans, ends_with_hits || other.ends_with_hits};
  }
  static constexpr Horizon none() { return {0, true}; }
  static constexpr Horizon unlimited() { return {std::numeric_limits<std::int64_t>::max(), true}; }
  static constexpr Horizon whatever_is_cached() { return {std::numeric_limits<std::int64_t>::max(), false}; }
};

// Upper bounds; 0: unknown.
struct StepBounds {
  std::int32_t requests = 0, tokens = 0;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual void plan(ReplicaView& view, StepPlan& plan) = 0;
  // Called after a plan() that only gave every running request one token. The default is always right, and slow.
  [[nodiscard]] virtual Horizon stable_for(const ReplicaView& /*view*/) const { return Horizon::none(); }
  // 2: plans over tokens still being computed (vLLM v1's asynchronous scheduling); 1: waits for each output.
  [[nodiscard]] virtual int pipeline_depth() const { return 1; }
  // After an empty plan: the next plan() without events; kNever: not before an event.
  [[nodiscard]] virtual Time wants_plan_at() const { return kNever; }
  // Rows computed, with the padding of CUDA graphs.
  [[nodiscard]] virtual std::int32_t padded_tokens(std::int32_t tokens) const { return tokens; }
  // 0: no graphs.
  [[nodiscard]] virtual std::int32_t largest_graph_tokens() const { return 0; }
  [[nodiscard]] virtual StepBounds step_bounds(std::int32_t /*max_model_len*/) const { return {}; }
  [[nodiscard]] virtual std::int32_t num_graphs() const { return 0; }
  // try_reserve instead of paged blocks.
  [[nodiscard]] virtual bool wants_contiguous_memory() const { return false; }
  // plan() begins with make_way() (policies/order/make_way.h).
  [[nodiscard]] virtual bool lets_overtake() const { return false; }
  // Steps have padding rows, which the engine does not run.
  [[nodiscard]] virtual bool pads_batches() const { return false; }
  // Entries may pass only some layers. The engine, pipeline stages and ranks that step together refuse it.
  [[nodiscard]] virtual bool plans_layers() const { return false; }
  // Fast-forward skipped `plans` repeats of the latest plan().
  virtual void on_repeat(std::int64_t /*plans*/) {}
  [[nodiscard]] virtual bool uses_predictor() const { return false; }
  // Or was rejected.
  virtual void on_finish(RequestId /*r*/) {}
};

using SchedulerRegistry = Registry<Scheduler>;

struct EngineSetting {
  bool has_large_gpu = true;  // 70 GiB or more, and not an A100
  bool overlaps = true;       // plans a step while the previous one computes
  std::int64_t model_layers = 0;
  std::uint64_t seed = 1;
  std::int64_t gpu_bytes = std::int64_t{80} << 30;
  int tp = 1;
};
void prefer_engine_defaults(const std::string& scheduler, const EngineSetting& setting, Params& p);

}  // namespace kvlab
