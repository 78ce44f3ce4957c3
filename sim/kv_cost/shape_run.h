#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "policies/kv/forward_passes.h"
#include "policies/kv/needs.h"
#include "policies/kv/policy/policy.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/kv/step.h"

namespace kvlab {

class RecordedCounts final : public CountSource {
 public:
  struct Entry {
    std::string purpose;
    std::int32_t layer = 0;
    std::int64_t step = 0;  // with prefill chunks
    std::vector<std::int32_t> counts;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  void begin_step(std::int64_t step) override { step_ = step; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::int64_t step_ = 0;
  std::vector<Entry> entries_;
};

// Replays in order. Throws InputError if the run asks for something else or more.
class ScriptedCounts final : public CountSource {
 public:
  explicit ScriptedCounts(std::vector<RecordedCounts::Entry> entries) : entries_(std::move(entries)) {}
  void begin_step(std::int64_t step) override { step_ = step; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;
  [[nodiscard]] bool used_up() const { return next_ == entries_.size(); }

 private:
  std::vector<RecordedCounts::Entry> entries_;
  std::size_t next_ = 0;
  std::int64_t step_ = 0;
};

// Means by Allocator::expected, one sequence at a time; others at their bounds.
class ExpectedCounts final : public CountSource {
 public:
  ExpectedCounts(const Recipe& recipe, const ModelShape& model)
      : model_(model), name_(recipe.allocator), allocator_(recipe.make_allocator()) {}
  // Rows hold at most `full` (Trigger::full), cut to `tokens` on average. 0: not cut, counts at their bounds.
  void set_target(std::int32_t tokens, std::int32_t full, std::int32_t sequence_tokens) {
    target_ = tokens, full_ = full, sequence_tokens_ = sequence_tokens;
  }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;

 private:
  ModelShape model_;
  std::string name_;
  std::unique_ptr<Allocator> allocator_;
  std::int32_t target_ = 0, full_ = 0, sequence_tokens_ = 0;
};

// Do not follow from lengths.
struct InputSizes {
  std::int32_t question_begin = -1;  // in the prompt; -1: unknown
  std::int32_t future_tokens = 0;    // for oracles
  std::vector<PassShape> pass;       // chunks
  friend bool operator==(const InputSizes&, const InputSizes&) = default;
};

// In a step of serving: the assumed question, and the extra pass if it runs after this step.
InputSizes input_sizes(const Needs& needs, const SeqStep& seq);

// Counts and positions; data pointers are null.
class ShapeObserver final : public Observer {
 public:
  explicit ShapeObserver(const Needs& needs) : needs_(needs) {}
  void clear();
  void add(const SeqStep& seq, const InputSizes& inputs);
  Observed observe(std::int32_t layer) override;

 private:
  Needs needs_;
  std::vector<Queries> step_, window_, pre_rope_queries_, future_;
  std::vector<const float*> no_floats_;
  std::vector<const std::int32_t*> no_ints_;
  std::vector<std::vector<PassQueries>> pass_;
  std::vector<std::span<const PassQueries>> pass_spans_;
};

// Runs a recipe without tensors. Data-dependent counts come from `counts`, or are at their bounds.
class ShapeRun {
 public:
  // Throws InputError if the recipe does not claim the cost host or fit these sizes. `counts` outlives the run.
  ShapeRun(const Recipe& recipe, const ModelShape& model, CountSource* counts = nullptr);

  struct Seq {
    std::int32_t seen_tokens = 0, new_tokens = 0, prompt_tokens = 0;
    std::vector<std::int32_t> held;  // [num_layers * kv_heads], or one for all; empty: none
    InputSizes inputs = {};
    [[nodiscard]] SeqStep as_step(std::int32_t index = 0) const {
      return {index, seen_tokens, new_tokens, prompt_tokens, inputs.question_begin};
    }
  };
  struct Result {
    std::vector<OpCall> calls;            // without prefill attention
    std::vector<std::size_t> first_call;  // [num_layers + 1]
    std::vector<std::int32_t> held;       // [batch, num_layers * kv_heads] after the step
    TierBytes before, peak, after;        // peak: layers append and evict in turn
    double attended_tokens = 0;           // decoding, mean per layer and KV head
    Traffic traffic;
    struct LayerBytes {
      std::int64_t before = 0, appended = 0, after = 0;
    };
    std::vector<LayerBytes> layers;
    std::vector<std::int64_t> fetched;  // [num_layers] over the host link
    std::vector<std::int64_t> disk;     // [num_layers]
  };
  // Sequences that do not continue the last step at their place get its state. Calls `keeper` for tokens encoded and read. Throws
  // InputError if `inputs` lacks an observed size.
  Result step(std::span<const Seq> batch, KvKeeper* keeper = nullptr);
  // The next step continues none.
  void run_only(std::span<const std::int32_t> layers);
  // One sequence. common: of all layers, kNoCut or kLayersDiffer; most: the largest.
  static constexpr std::int32_t kNoCut = -1, kLayersDiffer = -2;
  struct Targets {
    std::int32_t common = kNoCut, most = kNoCut;
  };
  [[nodiscard]] Targets targets(const Seq& seq) const;
  // Per layer with seq.held; runs nothing.
  [[nodiscard]] std::vector<std::int64_t> gpu_bytes(const Seq& seq);
  void forget() { put_before({}); }

  [[nodiscard]] const KvPolicy& policy() const { return policy_; }

 private:
  // Reused by each step.
  struct Group {
    explicit Group(const Needs& needs) : observer(needs) {}
    std::vector<std::size_t> place;
    std::vector<SeqStep> seqs;
    std::vector<Queries> queries;
    std::vector<KvStore> layers;
    ShapeObserver observer;
  };
  void fill(Group& group, std::span<const Seq> batch, bool decoding);
  void put_before(std::span<const Seq> batch);
  bool precede(const Seq& seq, std::int32_t index, std::int32_t seen, std::int32_t delta);
  void run_layer(Group& group, std::int32_t layer, KvKeeper* keeper, double& attended_tokens);
  void step_layer(std::int32_t layer, KvKeeper* keeper, Result& result);
  void renew_bytes(std::int32_t layer);
  void finish(Result& result);
  [[nodiscard]] std::size_t num_rows() const {
    return static_cast<std::size_t>(model_.num_layers) * static_cast<std::size_t>(model_.kv_heads);
  }
  [[nodiscard]] KvStore store_for(std::size_t sequences) const {
    return {model_, static_cast<std::int32_t>(sequences), policy_.num_words(), false};
  }
  // Before the step.
  [[nodiscard]] std::int32_t held_in(const Seq& seq, std::int32_t layer, std::int32_t head) const {
    if (seq.held.size() <= 1) return seq.held.empty() ? 0 : seq.held.front();
    return seq.held[static_cast<std::size_t>(layer) * static_cast<std::size_t>(model_.kv_heads) + static_cast<std::size_t>(head)];
  }
  [[nodiscard]] bool continues(const Seq& seq, std::size_t place) const;
  [[nodiscard]] bool runs(std::int32_t layer) const { return runs_[static_cast<std::size_t>(layer)]; }

  Recipe recipe_;
  ModelShape model_;
  KvPolicy policy_;
  bool acts_in_decode_ = false, keeps_state_ = true;
  Allocator::Scope scope_ = Allocator::Scope::kLayer;
  std::int32_t slack_tokens_ = 0;
  std::vector<bool> runs_;  // [num_layers]
  CountSource* counts_;
  Ops ops_;
  std::vector<Group> groups_;       // decoding, in prompts; a step before
  std::vector<TierBytes> bytes_;    // [num_layers]
  TierBytes sum_;                   // of bytes_
  std::vector<std::int32_t> ends_;  // [batch] tokens seen after the last step,
  std::vector<std::int32_t> held_;  // and held [batch, num_layers * kv_heads]
  std::vector<Segment> segments_;
  std::int64_t steps_ = 0;
};

struct SummedCall {
  OpCall call;
  std::int64_t launches = 0;
  friend bool operator==(const SummedCall&, const SummedCall&) = default;
};

std::vector<SummedCall> summed(std::span<const OpCall> calls);

// A recipe on shapes, for serving and `describe`.
class ExpectedRun {
 public:
  // Errors as ShapeRun.
  ExpectedRun(const Recipe& recipe, const ModelShape& model);
  ExpectedRun(const ExpectedRun&) = delete;
  ExpectedRun& operator=(const ExpectedRun&) = delete;

  ShapeRun::Result step(const ShapeRun::Seq& seq);
  // Counts at their bounds.
  ShapeRun::Result step_at_bounds(std::span<const ShapeRun::Seq> batch);
  ShapeRun& shapes() { return shapes_; }

 private:
  [[nodiscard]] std::int32_t cut_target(const ShapeRun::Seq& seq) const;

  Budget budget_;
  std::unique_ptr<Trigger> trigger_;
  ExpectedCounts counts_;
  ShapeRun shapes_;
};

}  // namespace kvlab
