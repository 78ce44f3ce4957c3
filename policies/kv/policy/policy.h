#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "policies/kv/cache/kv_store.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/kv/step.h"

namespace kvlab {

struct Acting;
struct EvictRows;

// `layers[l]` caches layer l; `seqs` are the stores' sequences, in order.
struct PolicyStep {
  Ops& ops;
  const ModelShape& model;
  std::span<const SeqStep> seqs;
  std::span<KvStore> layers;
  Observer& observer;
  std::uint64_t seed = 0;
  KvKeeper* keeper = nullptr;
};

// Per step and layer: append K and V, before_attention, attend, after_attention.
class KvPolicy {
 public:
  // Throws InputError if the recipe cannot run on these sizes or always keeps more than its budget.
  KvPolicy(const Recipe& recipe, const ModelShape& model);

  // Throws InputError if the budget is below what always stays.
  void refuse_small_budget(const SeqStep& seq) const;
  [[nodiscard]] bool keeps_what_stays(const SeqStep& seq) const { return why_small_budget(seq).empty(); }
  // For a prompt computed in one step.
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const {
    return !keeps_what_stays({0, 0, prompt_tokens, prompt_tokens, -1});
  }

  // Mean tokens per KV head that may stay in rows that hold `held`; nullopt: no action. At least what always stays.
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held) const;
  // Upper bound over all layers and KV heads, after this step.
  [[nodiscard]] std::int64_t most_tokens(const SeqStep& seq) const;
  // len [kv_heads].
  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, std::int32_t layer, std::span<const std::int32_t> len) const {
    return target(seq, Held(*parts_.allocator, model_, layer, len, seq.end()));
  }
  // True: at equal lengths some layers may be cut, others not.
  [[nodiscard]] bool has_shares() const { return parts_.allocator->has_shares(); }

  // Layers that all parts treat alike (KvPart::layer_kind). Layers that share budgets must run together.
  struct LayerKinds {
    std::vector<std::int32_t> of_layer;  // [num_layers]
    std::vector<std::int32_t> first;     // [groups] layer
    [[nodiscard]] bool run_together() const { return first.size() == of_layer.size(); }
  };
  [[nodiscard]] LayerKinds layer_kinds(bool decoding) const;
  // For rows of `len` tokens, with this step's. is_whole: nothing was evicted.
  [[nodiscard]] StepKey step_key(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len, bool is_whole) const;
  // grows: only uncut rows get longer.
  [[nodiscard]] Lengths affine_lengths(std::int32_t len, std::optional<std::int32_t> target, bool grows) const;
  // True: attention reads shares of encoded rows, so stored_bytes() are rounded.
  [[nodiscard]] bool reads_shares() const { return !parts_.format->is_native() && !parts_.selector->selects_all(); }
  [[nodiscard]] std::int64_t stored_bytes(std::int32_t layer, std::int32_t len, std::int64_t tokens) const {
    return parts_.format->row_bytes(model_, layer, len) * tokens / len;
  }

  // True: prompt tokens leave before or between layers.
  [[nodiscard]] bool prunes() const { return parts_.pruner != nullptr || parts_.rewriter != nullptr; }
  // Step tokens that `layer` computes; fewer than new_tokens only for a pruned prompt.
  [[nodiscard]] std::int32_t step_tokens(const SeqStep& seq, std::int32_t layer) const;
  // Throws InputError if the step has only a part of a pruned prompt.
  void refuse_part_of_prompt(const SeqStep& seq) const;
  // Per sequence, ascending indices in this layer's tokens that the next layer computes; empty: all. Valid until the next
  // after_attention().
  [[nodiscard]] std::span<const std::vector<std::int32_t>> going_on() const { return going_on_; }

  // May be null.
  [[nodiscard]] PromptRewriter* rewriter() const { return parts_.rewriter.get(); }

  [[nodiscard]] const Needs& needs() const { return needs_; }
  [[nodiscard]] std::int32_t num_words() const { return num_words_; }  // statistics per token
  [[nodiscard]] bool encodes() const { return parts_.format->encodes() || parts_.disposal->encodes(); }
  // True: sequences may be encoded or on lower tiers between steps.
  [[nodiscard]] bool may_rest() const { return encodes() || moves_lower(); }
  [[nodiscard]] bool moves_lower() const;
  static constexpr std::int32_t kWholePrompt = INT32_MAX;
  // Last prompt tokens to compute even if cached. >= 1; kWholePrompt: all.
  [[nodiscard]] std::int32_t fresh_tokens() const;
  [[nodiscard]] bool shares_prefixes() const {
    return recipe_.prefix_reuse != Recipe::PrefixReuse::kNone && fresh_tokens() != kWholePrompt;
  }

  // True: attend_prompt() replaces attention, for chunks of several tokens of uncut sequences.
  [[nodiscard]] bool selects_in_prompts(std::int32_t layer) const {
    return parts_.prefill_selector != nullptr && !parts_.prefill_selector->is_dense(layer);
  }
  // Computed query-key pairs.
  std::int64_t attend_prompt(const PromptChunk& chunk);

  // Sets `segments` to the attended tokens, with compensation. Valid until after_attention.
  void before_attention(const PolicyStep& step, std::int32_t layer, std::vector<Segment>& segments);
  // May shorten other layers.
  void after_attention(const PolicyStep& step, std::int32_t layer);

  // kNothing if rows are cut or another part reads older tokens in decode.
  [[nodiscard]] Selector::Lower lower(std::int32_t layer) const;
  // After after_attention(). Valid until step.ops' Frame ends.
  Selection stays(const PolicyStep& step, std::int32_t layer);

  [[nodiscard]] TierBytes resident(std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv) const;
  void forget(std::int32_t index);
  Traffic take_traffic();
  [[nodiscard]] FetchBeside fetches_beside() const { return parts_.selector->fetches_beside(); }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }

 private:
  void take_parts();
  void refuse_model() const;
  void give_budget();
  [[nodiscard]] bool are_shared_out(bool decoding) const;
  [[nodiscard]] std::int64_t target_lasts(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len) const;
  [[nodiscard]] std::string why_small_budget(const SeqStep& seq) const;
  [[nodiscard]] bool fits(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t raised(const SeqStep& seq, std::int32_t target) const;
  [[nodiscard]] std::int32_t kept_of_prompt(const SeqStep& seq) const;
  struct Least {
    std::int32_t tokens, layer;
  };
  // Tokens that the smallest row keeps of n.
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
  void compact(const PolicyStep& step, LayerStep& view, ScoredLayer& scored, const float* scores);
  [[nodiscard]] bool goes_by_position(const Acting& acting) const;
  [[nodiscard]] bool evicts_few(const LayerStep& view, const std::int32_t* keep) const;
  bool evict_oldest(LayerStep& view, const std::int32_t* keep);
  void evict_lowest(LayerStep& view, const std::int32_t* keep, const float* scores);
  void evict_in_place(LayerStep& view, const std::int32_t* keep, EvictRows op);

  Recipe recipe_;
  ModelShape model_;
  RecipeParts parts_;
  std::vector<KvPart*> all_parts_;
  std::vector<std::vector<std::int32_t>> going_on_;
  Needs needs_;
  std::int32_t num_words_ = 0, resident_words_ = 0;
  struct Raised {
    std::int32_t end = -1, new_tokens = 0, prompt_tokens = 0, target = 0, raised = 0;
  };
  mutable std::array<Raised, 64> known_raised_;
  mutable std::map<std::vector<std::int32_t>, std::int32_t> share_ids_;
  bool in_place_ = false;
  bool protects_share_ = false;                  // protected tokens depend on counts: held scores are unprotected
  std::vector<TensorArray<float>> held_scores_;  // per layer, if allocators revisit layers
};

// In decode a row's last tokens overwrite few evicted ones (EvictRows) and break position order; needs Scorer::is_order_free,
// Trigger::cuts_few, Disposal::evicts. Other cuts compact (CompactRows).
// Why decode cuts compact rows (sentence end); "": in place. `parts` has a scorer.
std::string why_compacts(const Recipe& recipe, const RecipeParts& parts);
// "" also without decode evictions.
std::string why_compacts(const Recipe& recipe);

}  // namespace kvlab
