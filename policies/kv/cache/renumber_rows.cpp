#include "policies/kv/cache/renumber_rows.h"

#include "base/ceil_div.h"
#include "kernels/storage/turn_keys_op.h"
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

}  // namespace

void renumber_kept(const LayerStep& step, const Selection& kept) {
  const std::vector<float> frequencies = rope_frequencies(step, 0);
  step.ops(TurnKeys{step.kv, places_of(step, kept, frequencies), false, {}});
}

void place_selected(const LayerStep& step, Segment& rows) {
  const std::vector<float> frequencies = rope_frequencies(step, 0);
  const KvRows out = scratch_rows(step, rows.index_first);
  step.ops(TurnKeys{step.kv, places_of(step, {rows.index_first, rows.index}, frequencies), true, out});
  rows.kv = out, rows.index_first = nullptr, rows.index = nullptr;
}

}  // namespace kvlab
