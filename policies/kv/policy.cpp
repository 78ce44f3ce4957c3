#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/score/fill_scores/fill_scores.h"
#include "kernels/select/gather_scores/gather_scores.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/policy_acting.h"
#include "policies/kv/recipe_positions.h"
#include "policies/kv/renumber_rows.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

bool all_decode(const PolicyStep& step) {
  return std::all_of(step.seqs.begin(), step.seqs.end(), [](const SeqStep& s) { return s.decoding(); });
}

constexpr std::int32_t kLongPrompt = 1 << 24;  // longer than any budget

}  // namespace

KvPolicy::KvPolicy(const Recipe& recipe, const ModelShape& model)
    : recipe_(recipe),
      model_(model),
      scorer_(recipe.make_scorer ? recipe.make_scorer() : nullptr),
      allocator_(recipe.make_allocator()),
      trigger_(recipe.make_trigger()),
      disposal_(recipe.make_disposal()),
      format_(recipe.make_format()),
      selector_(recipe.make_selector()),
      prefill_selector_(recipe.selects_in_prompts() ? recipe.make_prefill_selector() : nullptr),
      pruner_(recipe.make_prompt_pruner ? recipe.make_prompt_pruner() : nullptr),
      rewriter_(recipe.rewrites() ? recipe.make_prompt_rewriter() : nullptr),
      held_scores_(static_cast<std::size_t>(model.num_layers)) {
  for (KvPart* part : std::initializer_list<KvPart*>{scorer_.get(), allocator_.get(), trigger_.get(), disposal_.get(), format_.get(),
                                                     selector_.get(), prefill_selector_.get(), pruner_.get(), rewriter_.get()}) {
    if (part == nullptr) continue;
    if (const std::string why = part->refuses(model); !why.empty())
      throw InputError(fmt::format("recipe '{}' cannot run: {}", recipe.name, why));
    needs_.add(part->needs());
    needs_.prompt_queries |= part->num_words() > 0 && part->needs().step_queries;
    parts_.push_back(part);
    part->bind(num_words_);
    num_words_ += part->num_words();
    resident_words_ += part->resident_words();
  }
  needs_.cpu_only |= recipe.peer_ties;
  if (const std::string why = recipe.renumbers() ? why_rope_stays(model.rope) : ""; !why.empty())
    throw InputError(fmt::format("recipe '{}' cannot run: {}", recipe.name, why));
  if (recipe.rewrites() && !why_rope_stays(model.rope).empty())
    throw InputError(fmt::format(
        "recipe '{}' cannot run: a rewritten prompt takes other positions, and the model's RoPE scaling 'dynamic' changes angles with the "
        "length; write 'prompt_rewriter: none'",
        recipe.name));
  needs_.turns |= recipe.renumbers();
  needs_.cpu_only |= turns_in_decode(recipe);
  const bool equal_shares = !allocator_->has_shares() && !allocator_->depends_on_data();
  protects_share_ = scorer_ && scorer_->protects().recent_frac > 0 && !equal_shares && !recipe.peer_ties;
  if (!recipe.has_budget) return;
  if (const std::string why = why_no_budget(recipe); !why.empty()) throw InputError(why);
  allocator_->set_budget(recipe.budget);
  if (recipe.budget.tokens > 0) {  // a prompt of any length beyond the budget, then an answer
    refuse_small_budget({0, kLongPrompt - 1, 1, kLongPrompt, -1});
    refuse_small_budget({0, kLongPrompt, 1, kLongPrompt, -1});
  }
  if (scorer_) scorer_->set_budget(recipe.budget);
  if (trigger_->acts()) return;
  auto* const takes_share = dynamic_cast<TakesShare*>(selector_.get());
  if (recipe.budget.tokens > 0)
    selector_->set_budget(recipe.budget.tokens);
  else if (takes_share != nullptr)
    takes_share->set_share(recipe.budget);
  else
    throw InputError(
        fmt::format("recipe '{}' cannot run: selector '{}' takes a budget in tokens (budget_tokens), not a share of the prompt",
                    recipe.name, recipe.selector));
}

KvPolicy::LayerKinds KvPolicy::layer_kinds(bool decoding) const {
  // Layers that share a budget differ when they are cut: those with better scores, or more protected tokens, keep more. If tokens leave
  // between layers, each layer of a prompt has its own.
  const bool share_out = allocator_->has_shares() || allocator_->depends_on_data() || allocator_->scope() != Allocator::Scope::kLayer;
  const bool are_shared_out = ((!decoding || trigger_->in_decode()) && share_out) || (!decoding && pruner_ != nullptr);
  const auto alike = [&](std::int32_t a, std::int32_t b) {
    return std::all_of(parts_.begin(), parts_.end(), [&](const KvPart* part) { return part->layer_kind(a) == part->layer_kind(b); });
  };
  LayerKinds kinds;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    std::size_t of = are_shared_out ? kinds.first.size() : 0;
    while (of < kinds.first.size() && !alike(kinds.first[of], l)) ++of;
    if (of == kinds.first.size()) kinds.first.push_back(l);
    kinds.of_layer.push_back(static_cast<std::int32_t>(of));
  }
  return kinds;
}

std::int64_t KvPolicy::target_lasts(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len) const {
  if (!trigger_->in_decode()) return StepKey::kForEver;
  const bool is_raised = target && target != trigger_->target(seq, len, recipe_.budget);
  return !allocator_->is_uniform() || is_raised ? 1 : trigger_->lasts(seq, len, recipe_.budget);
}

StepKey KvPolicy::step_key(const SeqStep& seq, std::optional<std::int32_t> target, std::int32_t len, bool is_whole) const {
  constexpr std::int64_t kForEver = StepKey::kForEver;
  StepKey key;
  const bool is_first = seq.seen_tokens == seq.prompt_tokens;
  key.add((is_first ? 2 : 0) + (is_whole ? 1 : 0), is_first || (is_whole && target) ? 1 : kForEver);
  key.add(target.value_or(-1), target_lasts(seq, target, len));
  if (!trigger_->acts() && recipe_.budget.frac > 0) key.add(recipe_.budget.of(seq.prompt_tokens),
                                                            kForEver);  // a selector's share
  for (const KvPart* part : parts_) part->step_key(seq, key);
  // Codes and summaries depend on the cuts and their times.
  if (trigger_->in_decode() && !(format_->is_native() && selector_->selects_all())) key.add(seq.seen_tokens), key.add(seq.prompt_tokens);
  if (!target) return key;
  // If the trigger's target stays for ever, these numbers stay too.
  const Protected stay = trigger_->protects(seq);
  for (const std::int32_t number : {stay.recent, stay.before, trigger_->full(seq, recipe_.budget)}) key.add(number, kForEver);
  if (!allocator_->has_shares()) return key;
  std::vector<std::int32_t> shares;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    for (std::int32_t h = 0; h < model_.kv_heads; ++h) {
      const std::int32_t share = allocator_->expected(model_, l, h, *target, seq.end());
      shares.push_back(share >= seq.end() ? -1 : share);
    }
  }
  key.add(share_ids_.try_emplace(std::move(shares), static_cast<std::int32_t>(share_ids_.size())).first->second);
  return key;
}

Lengths KvPolicy::affine_lengths(std::int32_t len, bool is_cut) const {
  const bool adds_segments = selector_->adds_segments() || disposal_->adds_segments();
  if ((is_cut && !scorer_->cuts_affinely()) || (reads_shares() && adds_segments)) return Lengths::only(len);
  Lengths all = Lengths::all();
  for (const KvPart* part : parts_) all = all.within(part->affine_lengths(len));
  return all;
}

std::int32_t KvPolicy::fresh_tokens() const {
  if (needs_.prompt_queries || needs_.pre_rope_queries || needs_.pre_rope_keys || needs_.hidden) return kWholePrompt;
  return std::max(1, needs_.window_queries);
}

LayerStep KvPolicy::layer_step(const PolicyStep& step, std::int32_t layer) const {
  KvStore& store = step.layers[static_cast<std::size_t>(layer)];
  return {step.ops, step.model, layer, step.seqs, store.rows(), step.observer.observe(layer), step.seed, store.memory(), step.keeper};
}

void KvPolicy::before_attention(const PolicyStep& step, std::int32_t layer, std::vector<Segment>& segments) {
  LayerStep view = layer_step(step, layer);
  segments.clear();
  Segment rows;
  rows.kv = view.kv;
  const bool selects = !selector_->selects_all() && all_decode(step);
  if (selects) {
    selector_->update(view);
    const Selection selection = selector_->select(view);
    view.fetch(selection);
    rows.index_first = selection.index_first;
    rows.index = selection.index;
  }
  if (!format_->is_native()) rows.read_bytes = stored_bytes(layer, rows);
  if (recipe_.renumbers() && rows.index_first != nullptr) place_selected(view, rows);
  segments.push_back(rows);
  if (selects) selector_->add_segments(view, segments);
  disposal_->add_segments(view, segments);
}

std::int64_t KvPolicy::attend_prompt(const PromptChunk& chunk) {
  const Ops::Frame frame(chunk.ops);
  return prefill_selector_->attend(chunk);
}

// The bytes that attention reads of encoded rows: of each row the share that it attends to.
std::int64_t KvPolicy::stored_bytes(std::int32_t layer, const Segment& rows) const {
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < rows.kv.num_rows; ++r)
    if (const std::int32_t len = rows.kv.len[r]; len > 0) bytes += stored_bytes(layer, len, rows.tokens(r));
  return bytes;
}

void KvPolicy::after_attention(const PolicyStep& step, std::int32_t layer) {
  evict(step, layer);
  if (pruner_ != nullptr) prune(step, layer);
  const Ops::Frame frame(step.ops);
  LayerStep view = layer_step(step, layer);
  if (!selector_->selects_all() && !all_decode(step)) {
    selector_->update(view);  // sees new keys and values before they are encoded
    if (format_->leaves_exact()) view.exact = selector_->exact_tokens(view);
  }
  format_->store(view);
}

void KvPolicy::evict(const PolicyStep& step, std::int32_t layer) {
  if (needs_.weights && step.ops.computes())
    throw InputError(
        fmt::format("recipe '{}' cannot run: it needs trained tensors, write 'weights: FILE'{}", recipe_.name, weights_advice(recipe_)));
  const Ops::Frame frame(step.ops);
  LayerStep view = layer_step(step, layer);
  if (scorer_) scorer_->observe(view);
  disposal_->observe(view);
  Acting acting;
  for (std::size_t s = 0; s < step.seqs.size(); ++s) {
    const std::int32_t* len = view.kv.len + static_cast<std::int32_t>(s) * model_.kv_heads;
    const std::optional<std::int32_t> target_tokens = target(step.seqs[s], layer, {len, static_cast<std::size_t>(model_.kv_heads)});
    if (!target_tokens) continue;
    acting.which.push_back(static_cast<std::int32_t>(s));
    acting.target.push_back(*target_tokens);
    acting.seqs.push_back(step.seqs[s]);
  }
  if (!acting.which.empty()) act(step, view, acting);
}

// Scores of the acting sequences' tokens. Protected ones get +infinity, unless their number follows from counts that come later.
void KvPolicy::score(LayerStep& view, const std::int32_t* target, float* scores) {
  scorer_->score(view, scores);
  if (!protects_share_) protect(view, of_rows(view, target), scores);
  disposal_->rank(view, scores);
}

// A target for each sequence, row by row.
const std::int32_t* KvPolicy::of_rows(const LayerStep& view, const std::int32_t* target) {
  std::int32_t* rows = view.ops.host_ints(view.kv.num_rows);
  for (std::int32_t r = 0; r < view.kv.num_rows; ++r) rows[r] = target[view.kv.sequence(r)];
  return rows;
}

void KvPolicy::act(const PolicyStep& step, LayerStep& all, Acting& acting) {
  LayerStep view = acting.view(all);
  auto& held = held_scores_[static_cast<std::size_t>(view.layer)];
  held.settle_in(view.memory);
  held.resize(view.ops.computes() ? view.kv.total() : 0);
  score(view, acting.target.data(), held_scores(step, view.layer));
  std::vector<std::int32_t> layers;
  const Allocator::Scope scope = allocator_->scope();
  if (scope == Allocator::Scope::kLayer) {
    layers = {view.layer};
  } else if (scope == Allocator::Scope::kCascade || view.layer == model_.num_layers - 1) {
    for (std::int32_t l = 0; l <= view.layer; ++l) layers.push_back(l);
  }
  if (!layers.empty()) settle(step, layers, acting);
}

void KvPolicy::settle(const PolicyStep& step, std::span<const std::int32_t> layers, Acting& acting) {
  std::vector<LayerStep> views;
  std::vector<ScoredLayer> scored;
  views.reserve(layers.size());
  std::int32_t* full = step.ops.host_ints(std::ssize(acting.seqs));
  for (std::size_t s = 0; s < acting.seqs.size(); ++s) full[s] = trigger_->full(acting.seqs[s], recipe_.budget);
  for (const std::int32_t l : layers) {
    views.push_back(acting.view(layer_step(step, l)));
    ScoredLayer s;
    s.layer = l;
    s.kv = views.back().kv;
    s.target = acting.target.data(), s.full = full;
    s.scores = with_protected(views.back(), of_rows(views.back(), s.target), held_scores(step, l));
    s.marks = protects_share_ ? nullptr : held_scores(step, l);
    s.keep = step.ops.host_ints(s.kv.num_rows);
    s.in = &views.back().in;
    scored.push_back(s);
  }
  allocator_->allocate(step.ops, model_, acting.seqs, scored);
  for (std::size_t i = 0; i < scored.size(); ++i) {
    if (allocator_->has_shares() && !allocator_->depends_on_data()) keep_parts(scored[i], acting.seqs);
    cut(step, views[i], acting, scored[i]);
  }
}

// Rows that lose a part of their tokens at once keep the same part of their shares, for allocators whose shares do not depend on data.
void KvPolicy::keep_parts(ScoredLayer& scored, std::span<const SeqStep> seqs) const {
  for (std::int32_t r = 0; r < scored.kv.num_rows; ++r) {
    const std::int32_t s = scored.kv.sequence(r), target = scored.target[s], full = scored.full[s];
    if (full <= target) continue;
    const std::int32_t n = seqs[static_cast<std::size_t>(s)].end();
    scored.keep[r] = std::min(scored.kv.len[r], allocator_->expected_part(model_, scored.layer, r % scored.kv.kv_heads, target, full, n));
  }
}

void KvPolicy::cut(const PolicyStep& step, LayerStep& view, const Acting& acting, ScoredLayer& scored) {
  const KvRows& kv = scored.kv;
  if (std::equal(scored.keep, scored.keep + kv.num_rows, kv.len)) return;
  const Ops::Frame frame(step.ops);
  float *held = held_scores(step, scored.layer), *scores = with_protected(view, scored.keep, held);
  const std::int32_t* crowded_from = crowded(view, scored.keep);
  scorer_->refine(view, scored.keep, scores);
  if (crowded_from != nullptr) step.ops(FillScores{kv.num_rows, kv.first, crowded_from, kv.len, 0.0F, 1.0F, scores});  // newest first
  std::int64_t* first = step.ops.host_longs(kv.num_rows + 1);
  first[0] = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    if (scored.keep[r] < 0 || scored.keep[r] > kv.len[r])
      throw InternalError("allocator '" + recipe_.allocator + "' answered with an impossible count");
    first[r + 1] = first[r] + scored.keep[r];
  }
  std::int32_t* index = step.ops.ints(first[kv.num_rows]);
  step.ops(TopK{kv.num_rows, kv.first, scores, scored.keep, first, index, recipe_.peer_ties});
  disposal_->dispose(view, {first, index, scored.keep});
  if (!disposal_->shrinks()) return;
  if (recipe_.renumbers()) renumber_kept(view, {first, index});
  if (allocator_->scope() == Allocator::Scope::kCascade) {
    step.ops(GatherScores{kv.num_rows, kv.first, held, first, index, held});
    if (step.ops.computes()) held_scores_[static_cast<std::size_t>(scored.layer)].resize(first[kv.num_rows]);
  }
  KvStore& store = step.layers[static_cast<std::size_t>(scored.layer)];
  for (std::size_t s = 0; s < acting.which.size(); ++s)
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      store.shrink(acting.which[s] * kv.kv_heads + h, scored.keep[static_cast<std::int32_t>(s) * kv.kv_heads + h]);
}

bool KvPolicy::moves_lower() const {
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    if (lower(l) != Selector::Lower::kNothing) return true;
  return false;
}

Selector::Lower KvPolicy::lower(std::int32_t layer) const {
  const bool selects_alone = !trigger_->acts() && disposal_->only_drops() && format_->stores_prompt_keys_alone();
  return selects_alone ? selector_->lower(layer) : Selector::Lower::kNothing;
}

Selection KvPolicy::stays(const PolicyStep& step, std::int32_t layer) {
  LayerStep view = layer_step(step, layer);
  return selector_->stays(view);
}

void KvPolicy::forget(std::int32_t index) {
  for (KvPart* part : parts_) part->forget(index);
}

Traffic KvPolicy::take_traffic() {
  Traffic traffic = selector_->take_traffic();
  return traffic += disposal_->take_traffic(model_, *format_);
}

TierBytes KvPolicy::resident(std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv) const {
  TierBytes rows;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) rows.gpu += format_->row_bytes(model_, layer, kv.len[r]);
  rows = disposal_->resident(model_, layer, seqs, kv, *format_, rows);
  const bool needs_positions = (trigger_->acts() && disposal_->shrinks()) || prunes();
  TierBytes all = selector_->resident_in_layer(layer, model_, kv, rows);
  all.gpu += kv.total() * 4 * (resident_words_ + (needs_positions ? 1 : 0));
  return all;
}

}  // namespace kvlab
