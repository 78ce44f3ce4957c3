#include "policies/kv/policy/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "policies/kv/cache/renumber_rows.h"
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

}  // namespace kvlab
