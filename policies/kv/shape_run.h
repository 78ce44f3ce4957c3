#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "policies/kv/policy.h"
#include "policies/kv/shape_observer.h"

namespace kvlab {

// Runs a recipe on shapes alone: the cost of one step of a sequence or a batch, and the lengths after it. The parts are the same objects
// that replay and engine drive; they run without tensors. Counts that depend on data come from `counts`, else they are at their bounds.
class ShapeRun {
 public:
  // Errors (InputError): the recipe does not claim the cost host, or cannot run on these sizes. `counts` outlives the run.
  ShapeRun(const Recipe& recipe, const ModelShape& model, CountSource* counts = nullptr);

  // A sequence before a step, by its place in the batch.
  struct Seq {
    std::int32_t seen_tokens = 0, new_tokens = 0, prompt_tokens = 0;
    std::vector<std::int32_t> held;  // before the step: [num_layers * kv_heads] tokens, or one value for all; empty: none
    SeqExtras extras = {};           // further inputs that some recipes observe
    // At this place of a batch.
    [[nodiscard]] SeqStep as_step(std::int32_t index = 0) const {
      return {index, seen_tokens, new_tokens, prompt_tokens, extras.question_begin};
    }
  };
  struct Result {
    std::vector<OpCall> calls;            // in order, attention of decode among them; prefill's own attention is the model's
    std::vector<std::size_t> first_call;  // [num_layers + 1] where each layer's calls start
    std::vector<std::int32_t> held;       // after the step, [batch, num_layers * kv_heads]
    TierBytes before, peak, after;        // of the whole batch; peak: the most while layers append and evict one after the other
    double attended_tokens = 0;           // of decoding sequences together, mean per layer and KV head
    Traffic traffic;
    struct LayerBytes {
      std::int64_t before = 0, appended = 0, after = 0;  // on the GPU, of the whole batch
    };
    std::vector<LayerBytes> layers;
    std::vector<std::int64_t> fetched;  // [num_layers] bytes that decode brought from lower tiers over the host link
    std::vector<std::int64_t> disk;     // [num_layers] bytes that decode read from disk
  };
  // One step. A sequence whose numbers continue the last step at its place continues; any other gets the state that the step before would
  // have left. `keeper` is called for the tokens that this step encodes and reads. Errors (InputError): `extras` lacks a size that the
  // recipe observes.
  Result step(std::span<const Seq> batch, KvKeeper* keeper = nullptr);
  // From here on only these layers run; the others do nothing, and the next step continues none before.
  void run_only(std::span<const std::int32_t> layers);
  // The trigger's targets in a step of one sequence. common: tokens that all layers are cut to, kNoCut or kLayersDiffer; most: the largest
  // of a layer.
  static constexpr std::int32_t kNoCut = -1, kLayersDiffer = -2;
  struct Targets {
    std::int32_t common = kNoCut, most = kNoCut;
  };
  [[nodiscard]] Targets targets(const Seq& seq) const;
  // GPU bytes of each layer while the sequence holds seq.held; nothing runs.
  [[nodiscard]] std::vector<std::int64_t> gpu_bytes(const Seq& seq) const;
  // The next step continues nothing.
  void forget() { put_before({}); }

  [[nodiscard]] const KvPolicy& policy() const { return policy_; }
  [[nodiscard]] const ModelShape& model() const { return model_; }

 private:
  // Sequences that take a step together: those that decode, or those in their prompts.
  struct Group {
    std::vector<std::size_t> place;  // in the batch
    std::vector<SeqStep> seqs;
    std::vector<SeqExtras> extras;
    std::vector<KvStore> layers;
    std::unique_ptr<ShapeObserver> observer;  // null: no sequences
  };
  struct Progress {
    std::int32_t end = -1;
    std::vector<std::int32_t> held;
  };
  [[nodiscard]] Group group_of(std::span<const Seq> batch, bool decoding) const;
  void put_before(std::span<const Seq> batch);
  bool precede(const Seq& seq, std::int32_t index, std::int32_t seen, std::int32_t delta);
  void run_layer(Group& group, std::int32_t layer, KvKeeper* keeper, Result& result);
  [[nodiscard]] TierBytes layer_bytes(std::span<Group> groups, std::int32_t layer) const;
  void finish(std::span<Group> groups, Result& result);
  [[nodiscard]] std::vector<std::int32_t> held_of(const Seq& seq) const;
  [[nodiscard]] std::vector<std::int32_t> lengths(const Group& group, std::size_t s) const;
  [[nodiscard]] bool runs(std::int32_t layer) const { return runs_[static_cast<std::size_t>(layer)]; }

  Recipe recipe_;
  ModelShape model_;
  KvPolicy policy_;
  bool acts_in_decode_ = false, shares_layers_ = false;
  std::int32_t slack_tokens_ = 0;
  std::vector<bool> runs_;  // [num_layers]
  CountSource* counts_;
  Ops ops_;
  std::vector<Progress> progress_;  // by place in the batch
  std::vector<Segment> segments_;
  std::int64_t steps_ = 0;
};

// One kind of operation over all layers of a step.
struct SummedCall {
  OpCall call;                // summed; `op` names it
  std::int64_t launches = 0;  // calls that went into the sum
  friend bool operator==(const SummedCall&, const SummedCall&) = default;
};

// The calls summed per operation, in order of first appearance.
std::vector<SummedCall> summed(std::span<const OpCall> calls);

}  // namespace kvlab
