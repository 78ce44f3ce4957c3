#include "policies/kv/selector/tiers.h"

#include "kernels/select/copy_queries_op.h"

namespace kvlab {

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
