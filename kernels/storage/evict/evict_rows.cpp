#include "kernels/storage/evict/evict_rows.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/select/top_k/take_best.h"
#include "kernels/storage/compact/compact.h"

namespace kvlab {

OpCall call(const EvictRows& a) {
  OpCall c{.op = "evict", .rows = a.kv.num_rows, .outputs = a.total()};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    if (a.count(r) == 0) continue;
    const bool reads_row = a.choice == EvictRows::Choice::kLowest || (a.choice == EvictRows::Choice::kPositions && a.count(r) > 1);
    const std::int64_t read = reads_row ? a.kv.len[r] : a.count(r);
    c.tokens += read;
    c.bytes += 4 * read;
    c.flops += 2 * read * (a.choice == EvictRows::Choice::kLowest ? a.count(r) : 1);
  }
  const CompactShape moved{a.moves ? a.total() : 0, 1, 1, a.kv.head_dim, a.kv.kv_bytes};
  c.bytes += 4 * a.total() + bytes(moved) + moved.tokens * (8 + 8 * a.kv.num_words);
  return c;
}
KVLAB_WITHOUT_CUDA(EvictRows)

namespace {

struct Going {
  float score;
  std::int32_t position, place;
};

bool goes_before(const Going& a, const Going& b) { return a.score != b.score ? a.score < b.score : a.position > b.position; }

void list_lowest(const EvictRows& a, std::int32_t r, std::int32_t* out) {
  std::vector<Going> row;
  for (std::int32_t i = 0; i < a.kv.len[r]; ++i)
    row.push_back({rank_value(a.scores[a.kv.first[r] + i]), a.kv.position[a.kv.slot(r, i)], i});
  const std::int32_t d = a.count(r);
  std::nth_element(row.begin(), row.begin() + d - 1, row.end(), goes_before);
  for (std::int32_t j = 0; j < d; ++j) out[j] = row[static_cast<std::size_t>(j)].place;
  std::sort(out, out + d);
}

void list_positions(const EvictRows& a, std::int32_t r, std::int32_t* out) {
  const std::int32_t d = a.count(r), from = a.from[r], guess = a.guess[r];
  const auto goes = [&](std::int32_t i) {
    const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
    return position >= from && position < from + d;
  };
  if (d == 1 && guess >= 0 && guess < a.kv.len[r] && goes(guess)) {
    *out = guess;
    return;
  }
  for (std::int32_t i = 0; i < a.kv.len[r]; ++i)
    if (goes(i)) *out++ = i;
}

void move_token(const KvRows& kv, std::int64_t from, std::int64_t to) {
  const std::int64_t d = kv.head_dim;
  std::copy_n(kv.k + from * d, d, kv.k + to * d);
  std::copy_n(kv.v + from * d, d, kv.v + to * d);
  kv.position[to] = kv.position[from];
  for (std::int32_t w = 0; w < kv.num_words; ++w) kv.words[w * kv.pool_tokens + to] = kv.words[w * kv.pool_tokens + from];
}

// The i-th free place gets the i-th kept token of the others.
void fill_places(const EvictRows& a, std::int32_t r) {
  const std::int32_t *dropped = a.dropped + a.first[r], *end = a.dropped + a.first[r + 1];
  const std::int32_t keep = a.kv.len[r] - a.count(r);
  const std::int32_t* gone = std::lower_bound(dropped, end, keep);  // of the last places
  std::int32_t source = keep;
  for (const std::int32_t* hole = dropped; hole != end && *hole < keep; ++hole, ++source) {
    for (; gone != end && *gone == source; ++gone) ++source;
    move_token(a.kv, a.kv.slot(r, source), a.kv.slot(r, *hole));
  }
}

}  // namespace

void run_cpu(const EvictRows& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    if (a.count(r) == 0) return;
    if (a.choice == EvictRows::Choice::kLowest) list_lowest(a, r, a.dropped + a.first[r]);
    if (a.choice == EvictRows::Choice::kPositions) list_positions(a, r, a.dropped + a.first[r]);
    if (a.moves) fill_places(a, r);
  });
}

}  // namespace kvlab
