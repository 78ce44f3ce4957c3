#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/kv/recipe.h"

namespace kvlab {

// Brings what the parts asked for, layer by layer.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual Observed observe(std::int32_t layer) = 0;  // spans live until the step ends
};

// One step of a batch as a host sees it. `layers[l]` holds the cache of layer l; sequences in `seqs` are those of the stores, in order.
struct PolicyStep {
  Ops& ops;
  const ModelShape& model;
  std::span<const SeqStep> seqs;
  std::span<KvStore> layers;
  Observer& observer;
  std::uint64_t seed = 0;
  KvKeeper* keeper = nullptr;
};

// A recipe at work on one batch from its first token to its last: the object that replay, engine and cost host all drive.
// Per step and layer: the host appends the new tokens' K and V, calls before_attention, attends, calls after_attention.
class KvPolicy {
 public:
  // InputError where the recipe cannot run on these sizes, or its budget in tokens is below what it always keeps.
  KvPolicy(const Recipe& recipe, const ModelShape& model);

  // InputError where the budget leaves less in this step than the tokens that always stay.
  void refuse_small_budget(const SeqStep& seq) const;
  // False: the budget leaves less in this step than the tokens that always stay, so target() is above it.
  [[nodiscard]] bool keeps_what_stays(const SeqStep& seq) const { return why_small_budget(seq).empty(); }
  // The same of a prompt that is computed at once: at its end more than the budget stays.
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const {
    return !keeps_what_stays({0, 0, prompt_tokens, prompt_tokens, -1});
  }

  // Tokens per KV head that may stay on average in rows of one sequence that hold `held` before the cut, or nothing: no action. Where the
  // budget is a share of a short prompt, or a chunk is protected, this is at least what always stays, so that a prompt no longer than that
  // stays whole.
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held) const;
  // Most tokens that the sequence's rows in all layers hold together after this step: the budget, or what always stays, as the allocator
  // shares it out, and what the trigger lets rows grow since. Where nothing is evicted, or data alone decides how much, all tokens.
  [[nodiscard]] std::int64_t most_tokens(const SeqStep& seq) const;
  // Of a layer's rows, which hold `len` [kv_heads].
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, std::int32_t layer, std::span<const std::int32_t> len) const {
    return target(seq, Held(*allocator_, model_, layer, len, seq.end()));
  }
  // True: rows as long as each other may be cut in some layers only.
  [[nodiscard]] bool has_shares() const { return allocator_->has_shares(); }

  // [num_layers] the first layer that all parts treat as they treat this one (KvPart::layer_kind).
  [[nodiscard]] std::vector<std::int32_t> alike_layers() const;

  [[nodiscard]] const Needs& needs() const { return needs_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }  // statistics per token that the stores must have
  // Some part stores tokens otherwise than the model computes them.
  [[nodiscard]] bool encodes() const { return format_->encodes() || disposal_->encodes(); }
  // Sequences may rest between steps: as codes, or with something on a lower tier.
  [[nodiscard]] bool may_rest() const { return encodes() || moves_lower(); }
  [[nodiscard]] bool moves_lower() const;
  // How many of a prompt's last tokens must be computed with it although their K and V are there, because parts read more of them: their
  // queries, what they attended to, keys before RoPE. At least the last one; kWholePrompt: all.
  static constexpr std::int32_t kWholePrompt = INT32_MAX;
  [[nodiscard]] std::int32_t fresh_tokens() const;
  [[nodiscard]] bool shares_prefixes() const {
    return recipe_.prefix_reuse != Recipe::PrefixReuse::kNone && fresh_tokens() != kWholePrompt;
  }

  // What this step attends to in `layer`: all rows in prefill, in decode what the selector picks, plus compensation tokens.
  // The segments point into ops' scratch and the parts, until after_attention.
  void before_attention(const PolicyStep& step, std::int32_t layer, std::vector<Segment>& segments);
  // Statistics, eviction and encoding of `layer`; allocators that share between layers also shorten other layers here.
  void after_attention(const PolicyStep& step, std::int32_t layer);

  // What of a layer lies on a lower tier between decode steps: where the recipe has a selector with tiers, and no other part looks at older
  // tokens in decode.
  [[nodiscard]] Selector::Lower lower(std::int32_t layer) const;
  // After after_attention(): Selector::stays(). Lives until the current Frame of step.ops ends.
  Selection stays(const PolicyStep& step, std::int32_t layer);

  // Bytes that a layer's rows take, with everything that the parts keep beside them. seqs[kv.sequence(row)] is the row's sequence.
  [[nodiscard]] TierBytes resident(std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv) const;
  // The sequence at this place of the batch is gone, or another one takes it.
  void forget(std::int32_t index);
  Traffic take_traffic();
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }

 private:
  [[nodiscard]] std::string why_small_budget(const SeqStep& seq) const;
  [[nodiscard]] bool fits(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t raised(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t kept_of_prompt(const SeqStep& seq) const;
  struct Acting;
  // What a row of the layer that gets least keeps of n tokens.
  struct Least {
    std::int32_t tokens, layer;
  };
  [[nodiscard]] Least least_share(std::int32_t target, std::int32_t full, std::int32_t n) const;
  void keep_parts(ScoredLayer& scored, std::span<const SeqStep> seqs) const;
  [[nodiscard]] std::int64_t stored_bytes(std::int32_t layer, const Segment& rows) const;
  LayerStep layer_step(const PolicyStep& step, std::int32_t layer) const;
  void evict(const PolicyStep& step, std::int32_t layer);
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
  std::vector<KvPart*> parts_;  // all of them
  Needs needs_;
  std::int32_t num_words_ = 0, resident_words_ = 0;
  // Answers of raised() by a hash of the question: layers ask the same.
  struct Raised {
    std::int32_t end = -1, new_tokens = 0, prompt_tokens = 0, target = 0, raised = 0;
  };
  mutable std::array<Raised, 64> known_raised_;
  bool protects_share_ = false;                  // how many tokens are protected is known with the counts: held scores are bare
  std::vector<TensorArray<float>> held_scores_;  // per layer, of allocators that come back to earlier layers
};

}  // namespace kvlab
