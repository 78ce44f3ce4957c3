#include "policies/kv/policy/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/policy/acting.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

constexpr std::int32_t kLongPrompt = 1 << 24;  // above any budget

}  // namespace

KvPolicy::KvPolicy(const Recipe& recipe, const ModelShape& model)
    : recipe_(recipe), model_(model), parts_(recipe), all_parts_(parts_.all()), held_scores_(static_cast<std::size_t>(model.num_layers)) {
  take_parts();
  refuse_model();
  in_place_ = parts_.scorer && why_compacts(recipe_, parts_).empty();
  const bool equal_shares = !parts_.allocator->has_shares() && !parts_.allocator->depends_on_data();
  protects_share_ = parts_.scorer && parts_.scorer->protects().recent_frac > 0 && !equal_shares && !recipe.peer_ties;
  if (recipe.has_budget) give_budget();
}

void KvPolicy::take_parts() {
  for (KvPart* part : all_parts_) {
    if (const std::string why = part->refuses(model_); !why.empty())
      throw InputError(fmt::format("recipe '{}' cannot run: {}", recipe_.name, why));
    needs_.add(part->needs());
    needs_.prompt_queries |= part->num_words() > 0 && part->needs().step_queries;
    part->bind(num_words_);
    num_words_ += part->num_words();
    resident_words_ += part->resident_words();
  }
  needs_.turns |= recipe_.renumbers();
  if (recipe_.peer_ties) needs_.run_only_on_cpu(kBreaksPeerTies);
  if (turns_in_decode(recipe_))
    needs_.run_only_on_cpu("turns keys again and again in decode (positions: renumbered), and roundings to 16 bits add up");
}

void KvPolicy::refuse_model() const {
  const std::string why = why_rope_stays(model_.rope);
  if (why.empty()) return;
  if (recipe_.renumbers()) throw InputError(fmt::format("recipe '{}' cannot run: {}", recipe_.name, why));
  if (recipe_.rewrites())
    throw InputError(fmt::format(
        "recipe '{}' cannot run: a rewritten prompt takes other positions, and the model's RoPE scaling 'dynamic' changes angles with the "
        "length; write 'prompt_rewriter: none'",
        recipe_.name));
}

void KvPolicy::give_budget() {
  if (const std::string why = why_no_budget(recipe_); !why.empty()) throw InputError(why);
  parts_.allocator->set_budget(recipe_.budget);
  if (recipe_.budget.tokens > 0) {  // above the budget, then an answer
    refuse_small_budget({0, kLongPrompt - 1, 1, kLongPrompt, -1});
    refuse_small_budget({0, kLongPrompt, 1, kLongPrompt, -1});
  }
  if (parts_.scorer) parts_.scorer->set_budget(recipe_.budget);
  if (!parts_.trigger->acts()) parts_.selector->set_budget(recipe_.budget);
}

std::int32_t KvPolicy::fresh_tokens() const {
  if (needs_.prompt_queries || needs_.pre_rope_queries || needs_.pre_rope_keys || needs_.hidden) return kWholePrompt;
  return std::max(1, needs_.window_queries);
}

LayerStep KvPolicy::layer_step(const PolicyStep& step, std::int32_t layer) const {
  KvStore& store = step.layers[static_cast<std::size_t>(layer)];
  return {step.ops, step.model, layer, step.seqs, store.rows(), step.observer.observe(layer), step.seed, &store.memory(), step.keeper};
}

void KvPolicy::before_attention(const PolicyStep& step, std::int32_t layer, std::vector<Segment>& segments) {
  LayerStep view = layer_step(step, layer);
  segments.clear();
  Segment rows;
  rows.kv = view.kv;
  const bool selects = !parts_.selector->selects_all() && all_decode(step.seqs);
  if (selects) {
    parts_.selector->update(view);
    const Selection selection = parts_.selector->select(view);
    view.fetch(selection);
    rows.index_first = selection.index_first;
    rows.index = selection.index;
  }
  if (!parts_.format->is_native()) rows.read_bytes = stored_bytes(layer, rows);
  if (recipe_.renumbers() && rows.index_first != nullptr) place_selected(view, rows);
  segments.push_back(rows);
  if (selects) parts_.selector->add_segments(view, segments);
  parts_.disposal->add_segments(view, segments);
}

std::int64_t KvPolicy::attend_prompt(const PromptChunk& chunk) {
  const Ops::Frame frame(chunk.ops);
  return parts_.prefill_selector->attend(chunk);
}

std::int64_t KvPolicy::stored_bytes(std::int32_t layer, const Segment& rows) const {
  return sum_rows(rows.kv, [&](std::int32_t r) {
    const std::int32_t len = rows.kv.len[r];
    return len > 0 ? stored_bytes(layer, len, rows.tokens(r)) : 0;
  });
}

void KvPolicy::after_attention(const PolicyStep& step, std::int32_t layer) {
  evict(step, layer);
  if (parts_.pruner != nullptr) prune(step, layer);
  const Ops::Frame frame(step.ops);
  LayerStep view = layer_step(step, layer);
  if (!parts_.selector->selects_all() && !all_decode(step.seqs)) {
    parts_.selector->update(view);  // before new keys and values are encoded
    if (parts_.format->leaves_exact()) view.exact = parts_.selector->exact_tokens(view);
  }
  parts_.format->store(view);
}

bool KvPolicy::moves_lower() const {
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    if (lower(l) != Selector::Lower::kNothing) return true;
  return false;
}

Selector::Lower KvPolicy::lower(std::int32_t layer) const {
  const bool selects_alone = !parts_.trigger->acts() && parts_.disposal->only_drops() && parts_.format->stores_prompt_keys_alone();
  return selects_alone ? parts_.selector->lower(layer) : Selector::Lower::kNothing;
}

Selection KvPolicy::stays(const PolicyStep& step, std::int32_t layer) {
  LayerStep view = layer_step(step, layer);
  return parts_.selector->stays(view);
}

void KvPolicy::forget(std::int32_t index) {
  for (KvPart* part : all_parts_) part->forget(index);
}

Traffic KvPolicy::take_traffic() {
  Traffic traffic = parts_.selector->take_traffic();
  return traffic += parts_.disposal->take_traffic(model_, *parts_.format);
}

TierBytes KvPolicy::resident(std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv) const {
  TierBytes rows{.gpu = sum_rows(kv, [&](std::int32_t r) { return parts_.format->row_bytes(model_, layer, kv.len[r]); })};
  rows = parts_.disposal->resident(model_, layer, seqs, kv, *parts_.format, rows);
  const bool needs_positions = (parts_.trigger->acts() && parts_.disposal->shrinks()) || prunes();
  TierBytes all = parts_.selector->resident_in_layer(layer, model_, kv, rows);
  all.gpu += kv.total() * 4 * (resident_words_ + (needs_positions ? 1 : 0));
  return all;
}

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
