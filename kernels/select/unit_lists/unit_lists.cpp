#include "kernels/select/unit_lists/unit_lists.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "base/parallel.h"

namespace kvlab {

namespace {

std::int64_t total(const UnitLists& lists, std::int32_t num_rows) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < num_rows; ++r) n += lists.size(r);
  return n;
}

}  // namespace

OpCall call(const ExpandUnits& a) {
  const std::int64_t units = total(a.lists, a.num_rows), tokens = a.index_first[a.num_rows];
  return {.op = "expand_units", .rows = a.num_rows, .tokens = units, .outputs = tokens, .bytes = 4 * (units + tokens)};
}
KVLAB_WITHOUT_CUDA(ExpandUnits)

void run_cpu(const ExpandUnits& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    std::int32_t* out = a.index + a.index_first[r];
    const std::int32_t head = a.head == nullptr ? 0 : a.head[r], base = a.base == nullptr ? 0 : a.base[r];
    std::iota(out, out + head, 0);
    out += head;
    const std::int32_t* units = a.lists.row(r);
    for (std::int64_t i = 0; i < a.lists.size(r); ++i, out += a.unit_tokens)
      std::iota(out, out + a.unit_tokens, base + units[i] * a.unit_tokens);
    std::iota(out, out + (a.len[r] - a.tail[r]), a.tail[r]);
  }
}

OpCall call(const ComposeUnits& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "compose_units", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = (a.takes_all ? 8 : 12) * n};
}
KVLAB_WITHOUT_CUDA(ComposeUnits)

void run_cpu(const ComposeUnits& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) a.out[i] = a.base.row(r)[a.takes_all ? i - a.first[r] : a.pick[i]];
}

OpCall call(const UnionUnits& a) {
  const std::int64_t in = total(a.lists, a.num_rows * a.lists_per_row), out = a.first[a.num_rows];
  return {.op = "union_units", .rows = a.num_rows, .tokens = in, .outputs = out, .bytes = 4 * (in + out), .flops = in};
}
KVLAB_WITHOUT_CUDA(UnionUnits)

void run_cpu(const UnionUnits& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    std::vector<std::int32_t> all;
    for (std::int32_t l = r * a.lists_per_row; l < (r + 1) * a.lists_per_row; ++l)
      all.insert(all.end(), a.lists.row(l), a.lists.row(l) + a.lists.size(l));
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::copy(all.begin(), all.end(), a.unit + a.first[r]);
    a.count[r] = static_cast<std::int32_t>(all.size());
  });
}

OpCall call(const KeepUnits& a) {
  const std::int64_t n = total(a.lists, a.num_rows);
  return {.op = "keep_units", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n};
}
KVLAB_WITHOUT_CUDA(KeepUnits)

void run_cpu(const KeepUnits& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) std::copy_n(a.lists.row(r), a.lists.size(r), a.to[r]);
}

// A sort counts n log2(n) comparisons.
OpCall call(const RankUnits& a) {
  OpCall c{.op = "rank_units", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.lists.size(r);
    c.tokens += n;
    c.outputs += n;
    c.bytes += 12 * n;
    c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(RankUnits)

void run_cpu(const RankUnits& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const float* scores = a.scores + a.score_first[r];
    std::int32_t* end = std::copy_n(a.lists.row(r), a.lists.size(r), a.to[r]);
    std::stable_sort(a.to[r], end, [&](std::int32_t x, std::int32_t y) { return scores[x] > scores[y]; });
  }
}

OpCall call(const TakeRanked& a) {
  OpCall c{.op = "take_ranked", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    c.tokens += n;
    c.outputs += n;
    c.bytes += 8 * n;
    c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(TakeRanked)

void run_cpu(const TakeRanked& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    std::int32_t* out = a.unit + a.first[r];
    std::sort(out, std::copy_n(a.ranked[r], a.first[r + 1] - a.first[r], out));
  }
}

OpCall call(const TrackReuse& a) { return {.op = "track_reuse", .rows = a.num_rows}; }
KVLAB_WITHOUT_CUDA(TrackReuse)

void run_cpu(const TrackReuse& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t *was = a.last[r], *was_end = was + a.last_count[r], *asked = a.asked.row(r);
    a.hits[r] = 0;
    for (std::int64_t i = 0; i < a.asked.size(r); ++i) {
      was = std::lower_bound(was, was_end, asked[i]);
      if ((was != was_end && *was == asked[i]) || (a.held_from != nullptr && asked[i] >= a.held_from[r])) ++a.hits[r];
    }
    std::copy_n(a.now.row(r), a.now.size(r), a.last[r]);
  }
}

}  // namespace kvlab
