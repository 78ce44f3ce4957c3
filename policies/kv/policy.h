#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/kv/recipe.h"

namespace kvlab {

// Brings the tensors that the parts need, layer by layer.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual Observed observe(std::int32_t layer) = 0;  // spans live until the step ends
};

// One step of a batch as a host sees it. `layers[l]` is the cache of layer l; `seqs` has the sequences of the stores, in their order.
struct PolicyStep {
  Ops& ops;
  const ModelShape& model;
  std::span<const SeqStep> seqs;
  std::span<KvStore> layers;
  Observer& observer;
  std::uint64_t seed = 0;
  KvKeeper* keeper = nullptr;
};

// A recipe that runs on one batch from its first token to its last. Replay, engine and cost host drive this object.
// Per step and layer: the host appends the new tokens' K and V, calls before_attention, attends, calls after_attention.
class KvPolicy {
 public:
  // InputError: the recipe cannot run on these sizes, or its budget in tokens is below the tokens that it always keeps.
  KvPolicy(const Recipe& recipe, const ModelShape& model);

  // InputError: the budget leaves less in this step than the tokens that always stay.
  void refuse_small_budget(const SeqStep& seq) const;
  // False: the budget leaves less in this step than the tokens that always stay, so target() is above it.
  [[nodiscard]] bool keeps_what_stays(const SeqStep& seq) const { return why_small_budget(seq).empty(); }
  // True: of a prompt that is computed at once, more than the budget stays at its end.
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const {
    return !keeps_what_stays({0, 0, prompt_tokens, prompt_tokens, -1});
  }

  // Tokens per KV head that may stay on average in rows of one sequence that hold `held` before the cut; nothing: no action. If the
  // budget is a share of a short prompt, or a chunk is protected, this is at least the tokens that always stay, so that a prompt no longer
  // than that stays whole.
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held) const;
  // The most tokens that the sequence's rows in all layers hold together after this step: the budget, or the tokens that always stay, as
  // the allocator shares them out, and the growth that the trigger allows since. All tokens if nothing is evicted.
  [[nodiscard]] std::int64_t most_tokens(const SeqStep& seq) const;
  // The same as target() above for the rows of one layer, which hold `len` [kv_heads].
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, std::int32_t layer, std::span<const std::int32_t> len) const {
    return target(seq, Held(*allocator_, model_, layer, len, seq.end()));
  }
  // True: of rows of equal length, those of some layers may be cut and others not.
  [[nodiscard]] bool has_shares() const { return allocator_->has_shares(); }

  // Groups of layers that all parts treat alike (KvPart::layer_kind), in decode or in steps with prompt tokens. If a group's layers depend
  // on each other, or every layer is a group, all of them must run together.
  struct LayerKinds {
    std::vector<std::int32_t> of_layer;  // [num_layers] its group
    std::vector<std::int32_t> first;     // [groups] the first layer of each
    [[nodiscard]] bool run_together() const { return first.size() == of_layer.size(); }
  };
  [[nodiscard]] LayerKinds layer_kinds(bool decoding) const;
  // The key of a decode step (KvPart::step_key) of rows of `len` tokens, the step's included, that are cut to `target` on average, if at
  // all. is_whole: they lost nothing so far.
  [[nodiscard]] StepKey step_key(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len, bool is_whole) const;
  // KvPart::affine_lengths() of all parts together.
  [[nodiscard]] Lengths affine_lengths(std::int32_t len, bool is_cut) const;
  // True: attention reads a share of each encoded row, whose bytes are rounded and therefore not affine: stored_bytes() of a row of `len`
  // tokens of which `tokens` are read.
  [[nodiscard]] bool reads_shares() const { return !format_->is_native() && !selector_->selects_all(); }
  [[nodiscard]] std::int64_t stored_bytes(std::int32_t layer, std::int32_t len, std::int64_t tokens) const {
    return format_->row_bytes(model_, layer, len) * tokens / len;
  }

  // True: tokens of a prompt leave before or between the layers that compute it, which the three functions below describe.
  [[nodiscard]] bool prunes() const { return pruner_ != nullptr || rewriter_ != nullptr; }
  // Tokens of the sequence's step that `layer` computes: all, or of a prompt in one piece those that the layers before it kept.
  [[nodiscard]] std::int32_t step_tokens(const SeqStep& seq, std::int32_t layer) const;
  // InputError: the step has a part of a prompt that is pruned, and not all of it.
  void refuse_part_of_prompt(const SeqStep& seq) const;
  // After after_attention() of such a recipe, with data: for each sequence of the step the places among its tokens in the layer, ascending,
  // of those that the next layer computes; empty: all remain. Valid until the next call of after_attention().
  [[nodiscard]] std::span<const std::vector<std::int32_t>> going_on() const { return going_on_; }

  // null: prompts are computed as they are. A host that has step_tokens() of a prompt computed says which by choose().
  [[nodiscard]] PromptRewriter* rewriter() const { return rewriter_.get(); }

  [[nodiscard]] const Needs& needs() const { return needs_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }  // statistics per token that the stores must have
  // True: a part stores tokens otherwise than the model computes them.
  [[nodiscard]] bool encodes() const { return format_->encodes() || disposal_->encodes(); }
  // True: sequences may rest between steps, as codes or with a part on a lower tier.
  [[nodiscard]] bool may_rest() const { return encodes() || moves_lower(); }
  [[nodiscard]] bool moves_lower() const;
  static constexpr std::int32_t kWholePrompt = INT32_MAX;
  // The number of a prompt's last tokens that must be computed although their K and V are cached, because parts read their queries, their
  // attention or keys before RoPE. At least the last one; kWholePrompt: all.
  [[nodiscard]] std::int32_t fresh_tokens() const;
  [[nodiscard]] bool shares_prefixes() const {
    return recipe_.prefix_reuse != Recipe::PrefixReuse::kNone && fresh_tokens() != kWholePrompt;
  }

  // True: the policy computes the attention of prompts in this layer: attend_prompt() in place of attention over all tokens, for chunks of
  // more than one token of whose sequence nothing was cut.
  [[nodiscard]] bool selects_in_prompts(std::int32_t layer) const {
    return prefill_selector_ != nullptr && !prefill_selector_->is_dense(layer);
  }
  // PrefillSelector::attend(): returns the query-key pairs computed.
  std::int64_t attend_prompt(const PromptChunk& chunk);

  // Sets `segments` to the tokens that this step attends to in `layer`: all rows in prefill, the selector's choice in decode, plus
  // compensation tokens. They point into ops' scratch and the parts, and are valid until after_attention.
  void before_attention(const PolicyStep& step, std::int32_t layer, std::vector<Segment>& segments);
  // Statistics, eviction and encoding of `layer`; allocators that share between layers also shorten other layers here.
  void after_attention(const PolicyStep& step, std::int32_t layer);

  // The tensors of a layer that are on a lower tier between decode steps. Some are if the recipe has a selector with tiers and no other
  // part reads older tokens in decode.
  [[nodiscard]] Selector::Lower lower(std::int32_t layer) const;
  // Selector::stays(), called after after_attention(). Valid until the current Frame of step.ops ends.
  Selection stays(const PolicyStep& step, std::int32_t layer);

  // Bytes of a layer's rows and of all that the parts keep beside them. seqs[kv.sequence(row)] is the row's sequence.
  [[nodiscard]] TierBytes resident(std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv) const;
  // The sequence at this place of the batch is gone, or another one takes its place.
  void forget(std::int32_t index);
  Traffic take_traffic();
  [[nodiscard]] FetchBeside fetches_beside() const { return selector_->fetches_beside(); }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }

 private:
  [[nodiscard]] std::int64_t target_lasts(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len) const;
  [[nodiscard]] std::string why_small_budget(const SeqStep& seq) const;
  [[nodiscard]] bool fits(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t raised(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t kept_of_prompt(const SeqStep& seq) const;
  struct Acting;
  struct Least {
    std::int32_t tokens, layer;
  };
  // The tokens that the row with the smallest share keeps of n, and its layer.
  [[nodiscard]] Least least_share(std::int32_t target, std::int32_t full, std::int32_t n) const;
  void keep_parts(ScoredLayer& scored, std::span<const SeqStep> seqs) const;
  [[nodiscard]] std::int64_t stored_bytes(std::int32_t layer, const Segment& rows) const;
  LayerStep layer_step(const PolicyStep& step, std::int32_t layer) const;
  void evict(const PolicyStep& step, std::int32_t layer);
  void prune(const PolicyStep& step, std::int32_t layer);
  void choose_going_on(LayerStep& view, Acting& acting);
  void act(const PolicyStep& step, LayerStep& view, Acting& acting);
  void score(LayerStep& view, const std::int32_t* target, float* scores);
  static const std::int32_t* of_rows(const LayerStep& view, const std::int32_t* target);
  void protect(const LayerStep& view, const std::int32_t* kept, float* scores) const;
  float* with_protected(const LayerStep& view, const std::int32_t* kept, float* scores) const;
  const std::int32_t* crowded(const LayerStep& view, const std::int32_t* kept) const;
  float* held_scores(const PolicyStep& step, std::int32_t layer) {
    return step.ops.computes() ? held_scores_[static_cast<std::size_t>(layer)].data() : nullptr;
  }
  void settle(const PolicyStep& step, std::span<const std::int32_t> layers, Acting& acting);
  void cut(const PolicyStep& step, LayerStep& view, const Acting& acting, ScoredLayer& scored);

  Recipe recipe_;
  ModelShape model_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Trigger> trigger_;
  std::unique_ptr<Disposal> disposal_;
  std::unique_ptr<Format> format_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<PrefillSelector> prefill_selector_;  // null: prompts attend to every token
  std::unique_ptr<PromptPruner> pruner_;               // null: none
  std::unique_ptr<PromptRewriter> rewriter_;           // null: none
  std::vector<std::vector<std::int32_t>> going_on_;
  std::vector<KvPart*> parts_;  // all of them
  Needs needs_;
  std::int32_t num_words_ = 0, resident_words_ = 0;
  struct Raised {
    std::int32_t end = -1, new_tokens = 0, prompt_tokens = 0, target = 0, raised = 0;
  };
  // Results of raised() by a hash of its arguments, which are the same in many layers.
  mutable std::array<Raised, 64> known_raised_;
  mutable std::map<std::vector<std::int32_t>, std::int32_t> share_ids_;  // of the rows' shares in a cut
  bool protects_share_ = false;                  // the number of protected tokens follows from the counts: held scores have no protection
  std::vector<TensorArray<float>> held_scores_;  // per layer, of allocators that come back to earlier layers
};

}  // namespace kvlab
