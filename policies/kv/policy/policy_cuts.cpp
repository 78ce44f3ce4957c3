#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/score/score_map_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/cache/renumber_rows.h"
#include "policies/kv/policy/acting.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

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

}  // namespace kvlab
