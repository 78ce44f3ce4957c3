#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/ceil_div.h"
#include "base/error.h"
#include "kernels/score/score_map_op.h"
#include "kernels/select/top_k/top_k.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/evict_rows_op.h"
#include "kernels/storage/turn_keys_op.h"
#include "policies/kv/policy/acting.h"
#include "policies/kv/policy/policy.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

constexpr std::int32_t kScratchPageTokens = 64;

Places places_of(const LayerStep& step, const Selection& listed, const std::vector<float>& frequencies) {
  return {listed.index_first, listed.index, end_positions(step), or_null(frequencies)};
}

// On scratch pages.
KvRows scratch_rows(const LayerStep& step, const std::int64_t* first) {
  KvRows kv = step.kv;
  std::int32_t* const len = step.ops.host_ints(kv.num_rows);
  std::int32_t* const page_begin = step.ops.host_ints(kv.num_rows);
  std::int32_t pages = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    len[r] = static_cast<std::int32_t>(first[r + 1] - first[r]);
    page_begin[r] = pages;
    pages += ceil_div(len[r], kScratchPageTokens);
  }
  kv.len = len, kv.first = first, kv.page_begin = page_begin;
  kv.page = per_row(step.ops, pages, [](std::int32_t p) { return p; });
  kv.page_tokens = kScratchPageTokens, kv.pool_tokens = std::int64_t{pages} * kScratchPageTokens;
  kv.k = step.ops.floats(kv.pool_tokens * kv.head_dim), kv.v = step.ops.floats(kv.pool_tokens * kv.head_dim);
  kv.position = step.ops.ints(kv.pool_tokens);
  kv.words = nullptr, kv.num_words = 0;
  return kv;
}

// Front of the rows; step.kv has the lengths before the cut.
void renumber_kept(const LayerStep& step, const Selection& kept) {
  const std::vector<float> frequencies = rope_frequencies(step, 0);
  step.ops(TurnKeys{step.kv, places_of(step, kept, frequencies), false, {}});
}

bool leaves_no_gaps(const Protected& stay) { return !stay.prompt && stay.before == 0; }

// After the sinks, the window is a ring buffer from the prompt's end, or from when it is full.
std::int32_t place_of_oldest(const SeqStep& seq, std::int32_t sinks, std::int32_t window, std::int32_t oldest) {
  if (window == 0) return sinks;
  const std::int32_t begin = std::max(sinks, seq.prompt_tokens - window);
  return sinks + std::max(0, oldest - begin) % window;
}

bool is_whole_prompt(const SeqStep& seq) { return seq.seen_tokens == 0 && seq.completes_prompt(); }

}  // namespace

void place_selected(const LayerStep& step, Segment& rows) {
  const std::vector<float> frequencies = rope_frequencies(step, 0);
  const KvRows out = scratch_rows(step, rows.index_first);
  step.ops(TurnKeys{step.kv, places_of(step, {rows.index_first, rows.index}, frequencies), true, out});
  rows.kv = out, rows.index_first = nullptr, rows.index = nullptr;
}

void KvPolicy::evict(const PolicyStep& step, std::int32_t layer) {
  if (needs_.weights && step.ops.computes())
    throw InputError(
        fmt::format("recipe '{}' cannot run: it needs trained tensors, write 'weights: FILE'{}", recipe_.name, weights_advice(recipe_)));
  const Ops::Frame frame(step.ops);
  LayerStep view = layer_step(step, layer);
  if (parts_.scorer) parts_.scorer->observe(view);
  parts_.disposal->observe(view);
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

// Protected tokens get +infinity unless their number depends on later counts.
void KvPolicy::score(LayerStep& view, const std::int32_t* target, float* scores) {
  parts_.scorer->score(view, scores);
  if (!protects_share_) protect(view, of_rows(view, target), scores);
  parts_.disposal->rank(view, scores);
}

// [num_rows] from [num_sequences].
const std::int32_t* KvPolicy::of_rows(const LayerStep& view, const std::int32_t* target) {
  return per_row(view, [&](std::int32_t r) { return target[view.kv.sequence(r)]; });
}

void KvPolicy::act(const PolicyStep& step, LayerStep& all, Acting& acting) {
  LayerStep view = acting.view(all);
  auto& held = held_scores_[static_cast<std::size_t>(view.layer)];
  held.settle_in(view.memory());
  held.resize(view.ops.computes() ? view.kv.total() : 0);
  acting.is_scored = !goes_by_position(acting);
  if (acting.is_scored) score(view, acting.target.data(), held_scores(step, view.layer));
  std::vector<std::int32_t> layers;
  const Allocator::Scope scope = parts_.allocator->scope();
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
  const std::int32_t* full = per_row(step.ops, std::ssize(acting.seqs), [&](std::int32_t s) {
    return parts_.trigger->full(acting.seqs[static_cast<std::size_t>(s)], recipe_.budget);
  });
  for (const std::int32_t l : layers) {
    views.push_back(acting.view(layer_step(step, l)));
    ScoredLayer s{.layer = l, .kv = views.back().kv, .target = acting.target.data(), .full = full};
    s.scores = with_protected(views.back(), of_rows(views.back(), s.target), held_scores(step, l));
    s.marks = protects_share_ ? nullptr : held_scores(step, l);
    s.keep = step.ops.host_ints(s.kv.num_rows);
    s.in = &views.back().in;
    scored.push_back(s);
  }
  parts_.allocator->allocate(step.ops, model_, acting.seqs, scored);
  for (std::size_t i = 0; i < scored.size(); ++i) {
    if (parts_.allocator->has_shares() && !parts_.allocator->depends_on_data()) keep_parts(scored[i], acting.seqs);
    cut(step, views[i], acting, scored[i]);
  }
}

// Rows that lose a part at once keep that part of their shares, if these do not depend on data.
void KvPolicy::keep_parts(ScoredLayer& scored, std::span<const SeqStep> seqs) const {
  for (std::int32_t r = 0; r < scored.kv.num_rows; ++r) {
    const std::int32_t s = scored.kv.sequence(r), target = scored.target[s], full = scored.full[s];
    if (full <= target) continue;
    const std::int32_t n = seqs[static_cast<std::size_t>(s)].end();
    scored.keep[r] =
        std::min(scored.kv.len[r], parts_.allocator->expected_part(model_, scored.layer, r % scored.kv.kv_heads, target, full, n));
  }
}

void KvPolicy::cut(const PolicyStep& step, LayerStep& view, const Acting& acting, ScoredLayer& scored) {
  const KvRows& kv = scored.kv;
  if (std::equal(scored.keep, scored.keep + kv.num_rows, kv.len)) return;
  const Ops::Frame frame(step.ops);
  float* const held = held_scores(step, scored.layer);
  if (acting.is_scored || !evicts_few(view, scored.keep) || !evict_oldest(view, scored.keep)) {
    if (!acting.is_scored) score(view, acting.target.data(), held);
    float* const scores = with_protected(view, scored.keep, held);
    const std::int32_t* crowded_from = crowded(view, scored.keep);
    parts_.scorer->refine(view, scored.keep, scores);
    if (crowded_from != nullptr) step.ops(ScoreMap::fill(kv.num_rows, kv.first, crowded_from, kv.len, 0.0F, 1.0F, scores));  // newest first
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      if (scored.keep[r] < 0 || scored.keep[r] > kv.len[r])
        throw InternalError(
            fmt::format("allocator '{}' keeps {} of {} tokens in layer {}", recipe_.allocator, scored.keep[r], kv.len[r], scored.layer));
    if (crowded_from == nullptr && evicts_few(view, scored.keep))
      evict_lowest(view, scored.keep, scores);
    else
      compact(step, view, scored, scores);
  }
  if (!parts_.disposal->shrinks()) return;
  KvStore& store = step.layers[static_cast<std::size_t>(scored.layer)];
  for (std::size_t s = 0; s < acting.which.size(); ++s)
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      store.shrink(acting.which[s] * kv.kv_heads + h, scored.keep[static_cast<std::int32_t>(s) * kv.kv_heads + h]);
}

void KvPolicy::compact(const PolicyStep& step, LayerStep& view, ScoredLayer& scored, const float* scores) {
  const KvRows& kv = scored.kv;
  const std::int64_t* first = prefix_sums(view, [&](std::int32_t r) { return scored.keep[r]; });
  std::int32_t* index = step.ops.ints(first[kv.num_rows]);
  step.ops(TopK{kv.num_rows, kv.first, scores, scored.keep, first, index, recipe_.peer_ties});
  parts_.disposal->dispose(view, {first, index, scored.keep});
  if (!parts_.disposal->shrinks()) return;
  if (recipe_.renumbers()) renumber_kept(view, {first, index});
  if (parts_.allocator->scope() != Allocator::Scope::kCascade) return;
  TensorArray<float>& held = held_scores_[static_cast<std::size_t>(scored.layer)];
  const TensorArray<float> before(held);
  ScoreMap gather{kv.num_rows, first, ScoreMap::Kind::kGather, before.data()};
  gather.start = kv.first, gather.index = index, gather.out = held.data();
  step.ops(gather);
  if (step.ops.computes()) held.resize(first[kv.num_rows]);
}

bool KvPolicy::goes_by_position(const Acting& acting) const {
  if (!in_place_ || !parts_.scorer->keeps_latest()) return false;
  if (parts_.allocator->reads_scores() || !leaves_no_gaps(parts_.scorer->protects())) return false;
  return std::all_of(acting.seqs.begin(), acting.seqs.end(),
                     [&](const SeqStep& seq) { return seq.decoding() && leaves_no_gaps(parts_.trigger->protects(seq)); });
}

// At most one token if the disposal depends on order across heads.
bool KvPolicy::evicts_few(const LayerStep& view, const std::int32_t* keep) const {
  if (!in_place_ || !all_decode(view.seqs)) return false;
  const std::int32_t most = parts_.disposal->only_drops() ? EvictRows::kMost : 1;
  for (std::int32_t r = 0; r < view.kv.num_rows; ++r)
    if (view.kv.len[r] - keep[r] > most) return false;
  return true;
}

// False: a row keeps fewer tokens than its sinks.
bool KvPolicy::evict_oldest(LayerStep& view, const std::int32_t* keep) {
  const KvRows& kv = view.kv;
  std::int32_t *from = view.ops.host_ints(kv.num_rows), *guess = view.ops.host_ints(kv.num_rows);
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const SeqStep& seq = view.seqs[static_cast<std::size_t>(kv.sequence(r))];
    const std::int32_t sinks = std::max(parts_.scorer->protects().sinks, parts_.trigger->protects(seq).sinks);
    if (keep[r] < sinks) return false;
    from[r] = seq.end() - (kv.len[r] - sinks);
    guess[r] = place_of_oldest(seq, sinks, keep[r] - sinks, from[r]);
  }
  EvictRows op;
  op.choice = EvictRows::Choice::kPositions;
  op.from = from, op.guess = guess;
  evict_in_place(view, keep, op);
  return true;
}

void KvPolicy::evict_lowest(LayerStep& view, const std::int32_t* keep, const float* scores) {
  EvictRows op;
  op.scores = scores;
  evict_in_place(view, keep, op);
}

void KvPolicy::evict_in_place(LayerStep& view, const std::int32_t* keep, EvictRows op) {
  const KvRows& kv = view.kv;
  const std::int64_t* const kept_first = prefix_sums(view, [&](std::int32_t r) { return keep[r]; });
  const std::int64_t* const first = prefix_sums(view, [&](std::int32_t r) { return kv.len[r] - keep[r]; });
  op.kv = kv, op.first = first, op.dropped = view.ops.ints(first[kv.num_rows]);
  op.moves = parts_.disposal->only_drops();
  view.ops(op);
  if (op.moves) return;
  std::int32_t* const index = view.ops.ints(kept_first[kv.num_rows]);
  view.ops(CopyUnits{kv.num_rows, {first, op.dropped}, CopyUnits::Kind::kOthers, nullptr, kept_first, nullptr, index});
  parts_.disposal->let_go(view, {kept_first, index, keep});
  op.choice = EvictRows::Choice::kListed, op.moves = true;
  view.ops(op);
}

std::string why_compacts(const Recipe& r, const RecipeParts& parts) {
  const char* const ordered = "takes tokens in the order of their positions";
  const Disposal::Evicts evicts = parts.disposal->evicts();
  if (evicts == Disposal::Evicts::kOrdered) return fmt::format("disposal '{}' {}", r.disposal, ordered);
  if (evicts == Disposal::Evicts::kAsked) return fmt::format("disposal '{}' has 'in_place: false'", r.disposal);
  if (!parts.trigger->cuts_few()) return fmt::format("trigger '{}' drops many tokens at once", r.trigger);
  if (!parts.scorer->is_order_free({parts.allocator->is_uniform(), parts.trigger->unit()}))
    return fmt::format("scorer '{}' {}", r.scorer, ordered);
  if (parts.allocator->scope() == Allocator::Scope::kCascade)
    return fmt::format("allocator '{}' comes back to earlier layers", r.allocator);
  if (parts.format->encodes()) return fmt::format("format '{}' stores tokens in groups or in the order of their positions", r.format);
  if (!r.selects_all) return fmt::format("selector '{}' {}", r.selector, ordered);
  if (r.renumbers()) return "keys are renumbered in the order of their positions";
  if (r.prunes()) return fmt::format("{} '{}' {}", r.pruning_part(), r.rewrites() ? r.prompt_rewriter : r.prompt_pruner, ordered);
  if (r.peer_ties) return "ties are broken as a peer breaks them, by the tokens' order";
  return "";
}

std::string why_compacts(const Recipe& r) {
  const RecipeParts parts(r);
  if (parts.scorer == nullptr || !parts.trigger->in_decode() || !parts.disposal->shrinks()) return "";
  return why_compacts(r, parts);
}

std::int32_t KvPolicy::step_tokens(const SeqStep& seq, std::int32_t layer) const {
  if (!prunes() || !is_whole_prompt(seq)) return seq.new_tokens;
  if (parts_.rewriter != nullptr) {
    const std::int32_t question_tokens = seq.question_begin < 0 ? 0 : seq.end() - seq.question_begin;
    return std::min(seq.new_tokens, parts_.rewriter->kept(seq.end(), question_tokens));
  }
  const PromptPruner::Ends ends = parts_.pruner->ends(seq.end());
  const std::int32_t always = ends.first + std::max(1, ends.last);
  std::int32_t tokens = seq.new_tokens;
  for (std::int32_t l = 0; l < layer; ++l) tokens = std::min(tokens, std::max(always, parts_.pruner->kept(model_, l, tokens, seq.end())));
  return tokens;
}

void KvPolicy::refuse_part_of_prompt(const SeqStep& seq) const {
  if (!prunes() || seq.decoding() || is_whole_prompt(seq)) return;
  throw InputError(
      fmt::format("recipe '{}' {} prompts and takes each in one piece, but a step has tokens {} to {} of a prompt of {}: use a scheduler "
                  "that does not cut prompts (vllm_v0), a larger 'budget_tokens', or no 'chunk_tokens'",
                  recipe_.name, parts_.rewriter != nullptr ? "rewrites" : "prunes", seq.seen_tokens, seq.end(), seq.prompt_tokens));
}

void KvPolicy::prune(const PolicyStep& step, std::int32_t layer) {
  going_on_.assign(step.seqs.size(), {});
  if (layer + 1 == model_.num_layers) return;
  Acting acting;
  for (std::size_t s = 0; s < step.seqs.size(); ++s) {
    const std::int32_t left = step_tokens(step.seqs[s], layer + 1);
    if (left == step_tokens(step.seqs[s], layer)) continue;
    acting.which.push_back(static_cast<std::int32_t>(s));
    acting.target.push_back(left);
    acting.seqs.push_back(step.seqs[s]);
  }
  if (acting.which.empty()) return;
  const Ops::Frame frame(step.ops);
  LayerStep view = acting.view(layer_step(step, layer));
  choose_going_on(view, acting);
}

// One score row per sequence: its KV heads hold the same tokens.
void KvPolicy::choose_going_on(LayerStep& view, Acting& acting) {
  const auto sequences = static_cast<std::int32_t>(acting.seqs.size());
  std::int64_t *first = view.ops.host_longs(sequences + 1), *index_first = view.ops.host_longs(sequences + 1);
  std::int32_t *begin = view.ops.host_ints(sequences), *end = view.ops.host_ints(sequences);
  first[0] = index_first[0] = 0;
  for (std::int32_t s = 0; s < sequences; ++s) {
    const std::int32_t tokens = view.kv.len[s * view.kv.kv_heads], left = acting.target[static_cast<std::size_t>(s)];
    const PromptPruner::Ends ends = parts_.pruner->ends(acting.seqs[static_cast<std::size_t>(s)].end());
    first[s + 1] = first[s] + tokens;
    index_first[s + 1] = index_first[s] + left;
    begin[s] = ends.first;
    end[s] = tokens - std::max(1, ends.last);
  }
  float* const scores = view.ops.floats(first[sequences]);
  parts_.pruner->score(view, first, scores);
  view.ops(ScoreMap::fill(sequences, first, begin, end, std::numeric_limits<float>::infinity(), 0.0F, scores, true));
  std::int32_t* const index = view.ops.ints(index_first[sequences]);
  view.ops(TopK{sequences, first, scores, acting.target.data(), index_first, index});
  if (!view.ops.computes()) return;
  for (std::int32_t s = 0; s < sequences; ++s)
    going_on_[static_cast<std::size_t>(acting.which[static_cast<std::size_t>(s)])].assign(index + index_first[s],
                                                                                          index + index_first[s + 1]);
}

}  // namespace kvlab
