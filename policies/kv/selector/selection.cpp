#include "policies/kv/selector/selection.h"

#include <limits>

#include "kernels/score/score_map_op.h"
#include "kernels/select/copy_queries_op.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

PageScores page_scores(const LayerStep& step, const float* const* summaries, const std::int64_t* first, PageScores::Kind kind,
                       PageScores::Heads heads) {
  PageScores scores{.num_rows = step.kv.num_rows,
                    .kv_heads = step.kv.kv_heads,
                    .group = step.kv.group,
                    .head_dim = step.kv.head_dim,
                    .kv_bytes = step.kv.kv_bytes,
                    .queries = step.in.step.data(),
                    .summaries = summaries,
                    .first = first};
  scores.kind = kind, scores.heads = heads;
  return scores;
}

float* run_scores(LayerStep& step, PageScores scores) {
  scores.scores = step.ops.floats(scores.first[scores.num_rows]);
  step.ops(scores);
  return scores.scores;
}

UnitLists best_units(Ops& ops, std::int32_t num_rows, std::int32_t lists, const std::int64_t* first, const float* scores,
                     const std::int32_t* keep) {
  const std::int32_t n = num_rows * lists;
  TopK top{.num_rows = n,
           .first = lists == 1 ? first : prefix_sums(ops, n, [&](std::int32_t i) { return first[i / lists + 1] - first[i / lists]; }),
           .scores = scores,
           .keep = lists == 1 ? keep : per_row(ops, n, [&](std::int32_t i) { return keep[i / lists]; })};
  top.index_first = prefix_sums(ops, n, [&](std::int32_t i) { return top.keep[i]; });
  top.index = ops.ints(top.index_first[n]);
  ops(top);
  return {.first = top.index_first, .unit = top.index};
}

TokenProbabilities token_probabilities(LayerStep& step, AttentionStats::Group group, const std::int32_t* skip) {
  std::vector<Queries> queries(step.in.step.begin(), step.in.step.end());
  for (std::size_t s = 0; s < queries.size(); ++s)
    if (skip != nullptr && skip[s] == 1) queries[s].count = 0;
  AttentionStats stats;
  stats.kv = step.kv;
  stats.kv.len =
      per_row(step, [&](std::int32_t r) { return queries[static_cast<std::size_t>(step.kv.sequence(r))].count == 0 ? 0 : step.kv.len[r]; });
  stats.kv.first = prefix_sums(step, [&](std::int32_t r) { return stats.kv.len[r]; });
  stats.group = group;
  stats.queries = queries.data();
  stats.sum = step.ops.floats(stats.kv.total());
  step.ops.zero(stats.sum, stats.kv.total());
  step.ops(stats);
  return {stats.kv.first, stats.sum};
}

UnitLists united(LayerStep& step, const UnitLists& lists, const std::int64_t* first, const std::int32_t* keep) {
  const std::int32_t rows = step.kv.num_rows, group = step.kv.group;
  UnionUnits all{.num_rows = rows, .lists_per_row = group, .lists = lists};
  std::int32_t* count = per_row(step, [&](std::int32_t r) {
    return static_cast<std::int32_t>(std::min(static_cast<std::int64_t>(keep[r]) * group, first[r + 1] - first[r]));
  });
  all.first = prefix_sums(step, [&](std::int32_t r) { return count[r]; });
  all.unit = step.ops.ints(all.first[rows]);
  all.count = count;
  step.ops(all);
  settle_rows(step, "selected_units", count);
  return {.first = all.first, .unit = all.unit, .count = count};
}

UnitLists pick_units(LayerStep& step, const UnitLists& from, const UnitLists& picks) {
  const std::int32_t n = step.kv.num_rows;
  CopyUnits copy{.num_rows = n, .lists = from, .kind = CopyUnits::Kind::kPick, .first = picks.first, .pick = picks.unit};
  copy.out = step.ops.ints(picks.first[n]);
  step.ops(copy);
  return {.first = picks.first, .unit = copy.out};
}

std::vector<Queries> queries_over(const LayerStep& step, const float* numbers) {
  const std::int64_t width = std::int64_t{step.model.q_heads} * step.model.head_dim;
  std::vector<Queries> queries;
  for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s) queries.push_back({numbers == nullptr ? nullptr : numbers + s * width, 1, 0});
  return queries;
}

Selection expand(const LayerStep& step, CopyUnits units) {
  units.num_rows = step.kv.num_rows;
  units.kind = CopyUnits::Kind::kExpand;
  units.len = step.kv.len;
  units.first = prefix_sums(step, [&](std::int32_t r) { return units.tokens(r); });
  units.out = step.ops.ints(units.first[units.num_rows]);
  step.ops(units);
  return {units.first, units.out};
}

void mask_ends(const LayerStep& step, const std::int64_t* first, const std::int32_t* head, const std::int32_t* tail, float* scores) {
  step.ops(ScoreMap::fill(step.kv.num_rows, first, head, tail, -std::numeric_limits<float>::infinity(), 0.0F, scores, true));
}

void UnitTraffic::track(LayerStep& step, const UnitLists& lists) {
  const std::int32_t rows = step.kv.num_rows;
  TrackReuse reuse;
  reuse.num_rows = rows;
  reuse.asked = reuse.now = lists;
  const std::int32_t* was = per_row(step, [&](std::int32_t r) { return last_count_.at(step, r); });
  reuse.last = last_.rows(step, [&](std::int32_t r) { return std::max<std::int64_t>(was[r], lists.size(r)); });
  reuse.last_count = was;
  reuse.hits = per_row(step, [&](std::int32_t r) { return static_cast<std::int32_t>(std::min<std::int64_t>(was[r], lists.size(r))); });
  step.ops(reuse);
  settle_rows(step, "reused_units", reuse.hits);
  for (std::int32_t r = 0; r < rows; ++r) {
    traffic_.asked_units += lists.size(r);
    traffic_.hit_units += reuse.hits[r];
    last_count_.at(step, r) = static_cast<std::int32_t>(lists.size(r));
  }
}

void TierTraffic::track(LayerStep& step, const UnitLists& asked, const UnitLists& now, std::int64_t unit_bytes,
                        std::int64_t disk_unit_bytes) {
  const std::int32_t rows = step.kv.num_rows;
  const std::int32_t* was = per_row(step, [&](std::int32_t r) { return last_count_.at(step, r); });
  TrackReuse reuse{.num_rows = rows,
                   .asked = asked,
                   .now = now,
                   .last = last_.rows(step, [&](std::int32_t r) { return std::max<std::int64_t>(was[r], now.size(r)); }),
                   .last_count = was,
                   .held_from = per_row(step, [&](std::int32_t r) { return held_.at(step, r).from; }),
                   .hits = per_row(step, [](std::int32_t) { return 0; })};
  step.ops(reuse);
  std::int32_t* fetched =
      per_row(step, [&](std::int32_t r) { return reuse.held_from[r] == 0 ? 0 : static_cast<std::int32_t>(asked.size(r)) - reuse.hits[r]; });
  settle_rows(step, "fetched_units", fetched);
  for (std::int32_t r = 0; r < rows; ++r) {
    traffic_.fetched_bytes += fetched[r] * unit_bytes;
    traffic_.disk_bytes += fetched[r] * disk_unit_bytes;
    traffic_.asked_units += asked.size(r);
    traffic_.hit_units += asked.size(r) - fetched[r];
    last_count_.at(step, r) = static_cast<std::int32_t>(now.size(r));
    held_.at(step, r) = {};
  }
}

Selection TierSelector::stays(LayerStep& step) {
  const auto completes = [](const SeqStep& seq) { return seq.completes_prompt(); };
  if (std::none_of(step.seqs.begin(), step.seqs.end(), completes)) return {};
  const std::int32_t* to = per_row(step, [&](std::int32_t r) { return completes(seq_of(step, r)) ? held_from(step, r) : step.kv.len[r]; });
  const std::int32_t* from =
      per_row(step, [&](std::int32_t r) { return completes(seq_of(step, r)) ? std::min(head_of(step, r), to[r]) : 0; });
  return expand(step, {.lists = no_units(step), .head = from, .tail = to});
}

UnitLists in_row(LayerStep& step, const Selection& selection, const std::int32_t* head, const std::int32_t* count) {
  const std::int32_t n = step.kv.num_rows;
  std::int64_t* first = step.ops.host_longs(n + 1);
  for (std::int32_t r = 0; r < n; ++r) first[r] = selection.index_first[r] + head[r];
  first[n] = selection.index_first[n];
  return {.first = first, .unit = selection.index, .count = count};
}

TierBytes to_host(const TierBytes& held, std::int64_t bytes) {
  const std::int64_t moved = std::clamp<std::int64_t>(bytes, 0, held.gpu);
  return {held.gpu - moved, held.host + moved, held.disk};
}

TierBytes keep_on_gpu(const TierBytes& held, std::int64_t part, std::int64_t whole) {
  return whole == 0 ? held : to_host(held, held.gpu - held.gpu * std::min(part, whole) / whole);
}

std::span<const Queries> LastQueries::before(const LayerStep& step) {
  const std::int64_t width = static_cast<std::int64_t>(step.model.q_heads) * step.model.head_dim;
  view_.assign(step.in.step.begin(), step.in.step.end());
  float* const* kept = memory_.sequences(step, [&](std::int32_t) { return width; });
  for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
    if (known_.of_sequence(step, s) != 0)
      view_[static_cast<std::size_t>(s)] = {kept[s], 1, view_[static_cast<std::size_t>(s)].first_position};
  return view_;
}

void LastQueries::keep(LayerStep& step) {
  const std::int32_t heads = step.model.q_heads, d = step.model.head_dim;
  float* const* memory = memory_.sequences(step, [&](std::int32_t) { return heads * d; });
  step.ops(CopyQueries{step.kv.num_sequences(), heads, d, step.in.step.data(), memory, CopyQueries::Kind::kHalfRing, 1});
  for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
    if (step.in.step[static_cast<std::size_t>(s)].count > 0) known_.of_sequence(step, s) = 1;
}

}  // namespace kvlab
