#include <algorithm>

#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

bool KvPolicy::are_shared_out(bool decoding) const {
  const Allocator& allocator = *parts_.allocator;
  const bool by_data = allocator.depends_on_data() && !allocator.layers_alike();
  const bool share_out = allocator.has_shares() || by_data || allocator.scope() != Allocator::Scope::kLayer;
  return ((!decoding || parts_.trigger->in_decode()) && share_out) || (!decoding && parts_.pruner != nullptr);
}

KvPolicy::LayerKinds KvPolicy::layer_kinds(bool decoding) const {
  const auto works = [&](const KvPart* part) {
    return !decoding || (part != parts_.pruner.get() && part != parts_.rewriter.get() && part != parts_.prefill_selector.get());
  };
  const auto alike = [&](std::int32_t a, std::int32_t b) {
    return std::all_of(all_parts_.begin(), all_parts_.end(),
                       [&](const KvPart* part) { return !works(part) || part->layer_kind(a) == part->layer_kind(b); });
  };
  const bool differ = are_shared_out(decoding);
  LayerKinds kinds;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    std::size_t of = differ ? kinds.first.size() : 0;
    while (of < kinds.first.size() && !alike(kinds.first[of], l)) ++of;
    if (of == kinds.first.size()) kinds.first.push_back(l);
    kinds.of_layer.push_back(static_cast<std::int32_t>(of));
  }
  return kinds;
}

std::int64_t KvPolicy::target_lasts(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len) const {
  if (!parts_.trigger->in_decode()) return StepKey::kForEver;
  const bool is_raised = target && target != parts_.trigger->target(seq, len, recipe_.budget);
  return !parts_.allocator->is_uniform() || is_raised ? 1 : parts_.trigger->lasts(seq, len, recipe_.budget);
}

StepKey KvPolicy::step_key(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len, bool is_whole) const {
  constexpr std::int64_t kForEver = StepKey::kForEver;
  StepKey key;
  const bool is_first = seq.seen_tokens == seq.prompt_tokens;
  key.add((is_first ? 2 : 0) + (is_whole ? 1 : 0), is_first || (is_whole && target) ? 1 : kForEver);
  const bool counts_stay = target && parts_.allocator->keeps_counts() && !is_whole;
  const bool target_stays = counts_stay && target == parts_.trigger->target(seq, seq.end(), recipe_.budget);
  key.add(target.value_or(-1), target_stays ? parts_.trigger->lasts(seq, seq.end(), recipe_.budget) : target_lasts(seq, target, len));
  if (!parts_.trigger->acts() && recipe_.budget.frac > 0) key.add(recipe_.budget.of(seq.prompt_tokens),
                                                                  kForEver);  // a selector's share
  for (const KvPart* part : all_parts_) is_whole ? part->whole_key(seq, key) : part->step_key(seq, key);
  // Codes and summaries depend on cut times.
  if (parts_.trigger->in_decode() && !(parts_.format->is_native() && parts_.selector->selects_all()))
    key.add(seq.seen_tokens), key.add(seq.prompt_tokens);
  if (!target) return key;
  // Constant while the trigger's target is.
  const Protected stay = parts_.trigger->protects(seq);
  for (const std::int32_t number : {stay.recent, stay.before, parts_.trigger->full(seq, recipe_.budget)}) key.add(number, kForEver);
  if (!parts_.allocator->has_shares() || counts_stay) return key;
  std::vector<std::int32_t> shares;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    for (std::int32_t h = 0; h < model_.kv_heads; ++h) {
      const std::int32_t share = parts_.allocator->expected(model_, l, h, *target, seq.end());
      shares.push_back(share >= seq.end() ? -1 : share);
    }
  }
  key.add(share_ids_.try_emplace(std::move(shares), static_cast<std::int32_t>(share_ids_.size())).first->second);
  return key;
}

Lengths KvPolicy::affine_lengths(std::int32_t len, std::optional<std::int32_t> target, bool grows) const {
  const bool adds_segments = parts_.selector->adds_segments() || parts_.disposal->adds_segments();
  if ((target && !parts_.scorer->cuts_affinely()) || (reads_shares() && adds_segments)) return Lengths::only(len);
  Lengths all = Lengths::all();
  if (target && in_place_ && !grows) {  // above kMost, cuts are not in place
    const std::int32_t few = *target + EvictRows::kMost;
    if (len <= few || !parts_.allocator->is_uniform()) return Lengths::only(len);
    all.begin = few + 1;
  }
  for (const KvPart* part : all_parts_) all = all.within(part->affine_lengths(len));
  return all;
}

}  // namespace kvlab
