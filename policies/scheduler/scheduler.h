#pragma once

#include <bitset>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/registry.h"
#include "base/time.h"
#include "policies/request.h"

namespace kvlab {

// Some of a model's layers: bit l is layer l.
inline constexpr std::int32_t kMostLayers = 256;
using LayerSet = std::bitset<kMostLayers>;

// One request's share of a step: `tokens` new tokens through layers [layer_begin, layer_end). layer_end 0: to the last one. Tokens that end
// before the last layer continue in a later step, which begins at layer_end; until then they are not computed, and emit nothing.
struct StepEntry {
  RequestId request{};
  std::int32_t tokens = 0;
  std::int32_t padded_tokens = 0;  // rows it costs when padded to the batch's longest; 0: as many as tokens
  std::int32_t layer_begin = 0, layer_end = 0;
  std::int32_t layer_set = 0;  // 1 + the place in StepPlan::layer_sets of the layers that it does not skip; 0: it skips none
  // Set by the host when it commits the plan.
  std::int32_t kv_before = 0;  // cached tokens its new tokens attend to
  std::int32_t computed_before = 0;
  bool emits = false;          // its last token's logits give a token
  bool leaves_hashed = false;  // its old blocks go back when the output is processed
  bool ends_prompt = false;    // FootprintStep
  // Set by the scheduler: layer_end is above 0, and the tokens leave the model there.
  bool exits_early = false;

  // The tokens are computed when the step is done.
  [[nodiscard]] bool ends() const { return layer_end == 0 || exits_early; }
  [[nodiscard]] bool passes_all_layers() const { return layer_begin == 0 && layer_end == 0 && layer_set == 0; }
};

// The work of one step.
struct StepPlan {
  std::vector<StepEntry> entries;
  // Rows of finished members of a static batch: they go through the linear layers and the head, and emit nothing.
  std::int32_t idle_rows = 0;
  std::vector<LayerSet> layer_sets;
  // Above 0: the model is recursive, and layer l has the weights of layer l % loop_layers. An entry passes each of these at most once in a
  // step. 0: every layer has its own weights.
  std::int32_t loop_layers = 0;

  void clear() {
    entries.clear();
    layer_sets.clear();
    idle_rows = loop_layers = 0;
  }
  [[gnu::always_inline]] void add(RequestId request, std::int32_t tokens) { entries.push_back({request, tokens}); }
  [[nodiscard]] bool is_empty() const { return entries.empty() && idle_rows == 0; }
};

// kSwapAhead: no step waits for the copy, and the blocks are free once it has ended. A plain swap frees them at once, and the step being
// planned waits for the copy. kKeep: its blocks stay on the GPU until it runs again or the order puts it away.
enum class Preemption : std::uint8_t { kRecompute, kSwap, kSwapAhead, kKeep };
enum class QueueEnd : std::uint8_t { kFront, kBack };

// The work of a step in outline, for estimates of its time: decode rows with their cached tokens in all, and a piece of one prompt.
struct StepOutline {
  std::int32_t decodes = 0;
  std::int64_t decode_kv_tokens = 0;
  std::int32_t prompt_tokens = 0, prompt_kv_before = 0;
};

// One replica as its scheduler sees it while it plans one step. A plan takes and returns memory only by these calls;
// computed_tokens advance after plan() returns, by the plan's entries.
class ReplicaView {
 public:
  virtual ~ReplicaView() = default;
  [[nodiscard]] virtual Time now() const = 0;
  [[nodiscard]] virtual std::uint32_t num_waiting() const = 0;
  [[nodiscard]] virtual RequestId waiting(std::uint32_t position) const = 0;  // sorted by the order; 0 is the head
  [[nodiscard]] virtual std::span<const RequestId> running() const = 0;       // in admission order
  [[nodiscard]] virtual const Request& info(RequestId r) const = 0;
  // ---- the order of the experiment (policies/order/order.h) ----
  // The running request that gives way when memory runs out. `usual`: the scheduler's choice, which first come, first served keeps.
  [[nodiscard]] virtual RequestId victim(RequestId usual) const = 0;
  // A running a goes before a running b.
  [[nodiscard]] virtual bool precedes(RequestId a, RequestId b) const = 0;
  // For make_way(): how running requests give way to better waiting ones; none: they do not.
  [[nodiscard]] virtual std::optional<Preemption> overtaking() const = 0;
  [[nodiscard]] virtual bool overtakes(RequestId waiting, RequestId running) const = 0;
  // For make_way(): appends running requests that the order preempts in this plan of its own accord, in the mode that it returns.
  virtual Preemption take_off(std::vector<RequestId>& /*off*/) { return Preemption::kRecompute; }
  // A waiting r stays out of this plan, and so do those after it.
  virtual bool holds(RequestId /*r*/) { return false; }
  // Output tokens that the experiment's predictor expects of r in all; for schedulers with uses_predictor(). Without one: the true number.
  virtual std::int32_t predicted_output(RequestId r) { return info(r).output_limit; }
  // Time of a step, host time included; none: this host has no estimate.
  virtual std::optional<Span> step_time(const StepOutline& /*outline*/) { return std::nullopt; }
  // ---- memory and queues ----
  // Tokens that r could compute in this step: n - c; 0 when in-flight tokens reach its output limit, and while a step of r is in
  // flight on hosts that do not plan over unknown tokens.
  [[nodiscard]] virtual std::int32_t needed_tokens(RequestId r) const = 0;
  [[nodiscard]] virtual std::int32_t max_model_len() const = 0;
  [[nodiscard]] virtual std::int32_t block_tokens() const = 0;
  [[nodiscard]] virtual std::int64_t num_blocks() const = 0;                // usable blocks in all
  [[nodiscard]] virtual std::int64_t free_blocks() const = 0;               // unreferenced ones, cached included
  [[nodiscard]] virtual std::int64_t leaving_blocks() const { return 0; }   // free once copies under way have ended (kSwapAhead)
  [[nodiscard]] virtual std::int64_t num_cpu_blocks() const { return 0; }   // room for swapped blocks in CPU memory
  [[nodiscard]] virtual std::int64_t free_cpu_blocks() const { return 0; }  // of it, unused
  // Blocks r would hold at length n, hits aside. Schedulers never divide by the block size themselves.
  [[nodiscard]] virtual std::int64_t blocks_for(RequestId r, std::int32_t n) const = 0;
  // Free blocks that r takes to compute m more tokens. Hits of a waiting r are looked up; those without a reference count, since they
  // are no longer free once r takes them.
  [[nodiscard]] virtual std::int64_t blocks_needed(RequestId r, std::int32_t m) = 0;
  // Most blocks r holds while all its known tokens are prefilled.
  [[nodiscard]] virtual std::int64_t peak_blocks(RequestId r) const = 0;
  // Tokens of a waiting r that the prefix cache holds, at most n - 1. Valid until the next call that changes the pool.
  virtual std::int32_t lookup(RequestId r) = 0;
  // Room for m more tokens of r, all or nothing. A waiting r with nothing computed takes its hits first; these count as computed, and m
  // comes on top of them. Blocks for `ahead` tokens of later steps are taken as well; they have no hash before their tokens are planned.
  virtual bool try_allocate(RequestId r, std::int32_t m, std::int32_t ahead = 0) = 0;
  // The same room, for m tokens whose KV is complete only after several steps of some layers each. Their blocks have no hash before
  // try_allocate(r, m) is called in the plan of the last of these steps; it takes no block then.
  virtual bool try_hold(RequestId r, std::int32_t m, std::int32_t ahead = 0) = 0;
  // Reserves one contiguous range for `tokens` tokens of r in all, before it starts; for contiguous managers.
  virtual bool try_reserve(RequestId r, std::int32_t tokens) = 0;
  virtual void admit(RequestId r) = 0;  // from waiting to the end of running
  virtual void preempt(RequestId r, Preemption mode, QueueEnd end = QueueEnd::kFront) = 0;
  // A waiting r that was preempted by kKeep leaves the GPU in another mode; for orders.
  virtual void put_away(RequestId /*r*/, Preemption /*mode*/) {}
  // Starts to bring a swapped waiting r back: takes room for its kept tokens and m more, all or nothing. r keeps its place in the queue
  // and is parked until the copy has ended; then is_swapped is false and it can be admitted. joins: the plan admits r if it is there; the
  // host may let the step wait for the copy, and then r is not parked (SwapSetup::Overlap).
  virtual bool try_swap_in(RequestId r, std::int32_t m, bool joins = false) = 0;
  virtual void reject(RequestId r, const char* reason) = 0;  // leaves waiting with an error, counted
};

// The number of plans after this one in which plan() would repeat itself (one token for each running request, in the same order) if
// nothing arrives, finishes, fails to allocate or returns blocks. Fast-forward may skip them.
struct Horizon {
  std::int64_t plans = 0;
  // True: while requests wait, the first loss of a cached block ends it too, since a head may find fewer hits then. That matters for a
  // head that may need less, or be refused, with fewer hits; not for one that needs all of its prompt's blocks at once.
  bool ends_with_hits = true;
  // The shorter of two.
  [[nodiscard]] constexpr Horizon within(const Horizon& other) const {
    return {plans < other.plans ? plans : other.plans, ends_with_hits || other.ends_with_hits};
  }
  static constexpr Horizon none() { return {0, true}; }
  static constexpr Horizon unlimited() { return {std::numeric_limits<std::int64_t>::max(), true}; }
  static constexpr Horizon whatever_is_cached() { return {std::numeric_limits<std::int64_t>::max(), false}; }
};

// Upper bounds on the requests and the new tokens of a step; 0: not known.
struct StepBounds {
  std::int32_t requests = 0, tokens = 0;
};

// Plans the next step of one replica.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual void plan(ReplicaView& view, StepPlan& plan) = 0;
  // Called right after a plan() that gave every running request one token and admitted, preempted, rejected and swapped in no request.
  // The default is no promise: always right, and slow.
  [[nodiscard]] virtual Horizon stable_for(const ReplicaView& /*view*/) const { return Horizon::none(); }
  // Steps in flight: 2 plans over tokens still being computed (vLLM v1's asynchronous scheduling), 1 waits for each output.
  [[nodiscard]] virtual int pipeline_depth() const { return 1; }
  // After an empty plan: the time of the next plan() though nothing happens (a batching window ends); kNever: not before an event.
  [[nodiscard]] virtual Time wants_plan_at() const { return kNever; }
  // Rows that the engine computes for a step of that many tokens: CUDA graphs exist for some sizes only, and a step that runs as a graph
  // is padded to the next one.
  [[nodiscard]] virtual std::int32_t padded_tokens(std::int32_t tokens) const { return tokens; }
  // The largest of these sizes: a step of more tokens runs without a graph. 0: there are none.
  [[nodiscard]] virtual std::int32_t largest_graph_tokens() const { return 0; }
  // Bounds for requests of at most max_model_len tokens: a host with real memory prepares for them before a run.
  [[nodiscard]] virtual StepBounds step_bounds(std::int32_t /*max_model_len*/) const { return {}; }
  // CUDA graphs that the engine captures, one for each size that padded_tokens() returns: they take memory.
  [[nodiscard]] virtual std::int32_t num_graphs() const { return 0; }
  // True: one contiguous range per request (try_reserve) instead of paged blocks.
  [[nodiscard]] virtual bool wants_contiguous_memory() const { return false; }
  // True: plan() begins with make_way() (policies/order/make_way.h), so that orders may preempt running requests for waiting ones.
  [[nodiscard]] virtual bool lets_overtake() const { return false; }
  // True: steps have rows of padding (StepEntry::padded_tokens, StepPlan::idle_rows), which the engine does not run.
  [[nodiscard]] virtual bool pads_batches() const { return false; }
  // True: entries may pass some of the layers only. The engine, pipeline stages and ranks that step together run whole steps, and refuse
  // it.
  [[nodiscard]] virtual bool plans_layers() const { return false; }
  // Number of calls of plan() that fast-forward left out, which would have repeated the latest one.
  virtual void on_repeat(std::int64_t /*plans*/) {}
  // plan() calls ReplicaView::predicted_output().
  [[nodiscard]] virtual bool uses_predictor() const { return false; }
  // r left (finished or rejected): its state in the scheduler is deleted.
  virtual void on_finish(RequestId /*r*/) {}
};

using SchedulerRegistry = Registry<Scheduler>;

// On which the defaults of an engine depend.
struct EngineSetting {
  bool has_large_gpu = true;  // 70 GiB or more, and no A100
  bool overlaps = true;       // its version plans a step while the one before it computes
  std::int64_t model_layers = 0;
  std::uint64_t seed = 1;
  std::int64_t gpu_bytes = std::int64_t{80} << 30;
  int tp = 1;
};
// Sets the defaults of schedulers that mirror an engine (engine_defaults.cpp).
void prefer_engine_defaults(const std::string& scheduler, const EngineSetting& setting, Params& p);

}  // namespace kvlab
