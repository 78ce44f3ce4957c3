#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/select/top_k/take_best.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

constexpr float kFirst = std::numeric_limits<float>::infinity();
using Candidates = std::vector<Candidate>;

Candidates scores_of(const TopK& a, std::int64_t r) {
  const float* scores = a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r];
  Candidates row;
  row.reserve(static_cast<std::size_t>(a.first[r + 1] - a.first[r]));
  for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) row.push_back({rank_value(scores[i - a.first[r]]), i});
  return row;
}

void list_indices(const TopK& a, std::int64_t r) {
  Candidates row = scores_of(a, r);
  const std::int32_t n = std::min(a.keep[r], static_cast<std::int32_t>(row.size()));
  take_best(row, n, a.peer_ties);
  std::int32_t* out = a.index + a.index_first[r];
  for (std::int32_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(row[static_cast<std::size_t>(i)].at - a.first[r]);
  std::sort(out, out + n);
}

// The pool's scores. Floors are counted and left out, with peer_ties they score highest.
Candidates pool_of(const TopK& a, std::int64_t row0) {
  Candidates pool;
  for (std::int64_t r = row0; r < row0 + a.rows_per_pool; ++r) {
    Candidates row = scores_of(a, r);
    const auto floor = a.floor_tokens == nullptr ? 0 : std::min(a.floor_tokens[r], static_cast<std::int32_t>(row.size()));
    a.count[r] = a.peer_ties ? 0 : floor;
    const auto begin = static_cast<std::ptrdiff_t>(pool.size());
    if (a.peer_ties) pool.insert(pool.end(), row.begin(), row.end());
    take_best(row, floor, a.peer_ties);
    if (!a.peer_ties) pool.insert(pool.end(), row.begin() + floor, row.end());
    for (std::int32_t i = 0; a.peer_ties && i < floor; ++i)
      pool[static_cast<std::size_t>(begin + row[static_cast<std::size_t>(i)].at - a.first[r])].score = kFirst;
  }
  return pool;
}

void count_pool(const TopK& a, std::int64_t p) {
  const std::int64_t row0 = p * a.rows_per_pool, row_end = row0 + a.rows_per_pool;
  Candidates pool = pool_of(a, row0);
  for (Candidate& c : pool) {
    if (a.peer_ties && !a.drops && a.marked != nullptr && c.score == kFirst) a.marked[c.at] = kFirst;
    if (a.drops) c.score = -c.score;
  }
  std::int64_t kept = a.budget[p];
  for (std::int64_t r = row0; r < row_end; ++r) kept -= a.count[r];
  const auto all = static_cast<std::int64_t>(pool.size());
  kept = std::clamp<std::int64_t>(kept, 0, all);
  const std::int64_t taken = a.drops ? all - kept : kept;
  take_best(pool, static_cast<std::int32_t>(taken), a.peer_ties);
  for (std::int64_t r = row0; a.drops && r < row_end; ++r) a.count[r] = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
  for (std::int64_t i = 0; i < taken; ++i) {
    const std::int64_t at = pool[static_cast<std::size_t>(i)].at;
    a.count[std::upper_bound(a.first + row0, a.first + row_end + 1, at) - a.first - 1] += a.drops ? -1 : 1;
    if (a.drops && a.marked != nullptr) a.marked[at] = -kFirst;
  }
}

}  // namespace

void run_cpu(const TopK& a) {
  const bool counts = a.kind == TopK::Kind::kCounts;
  for_each_in_parallel(counts ? a.num_rows / a.rows_per_pool : a.num_rows,
                       [&](std::int64_t i) { counts ? count_pool(a, i) : list_indices(a, i); });
}

}  // namespace kvlab
