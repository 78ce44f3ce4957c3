#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/select/top_k/take_best.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

void run_cpu(const TopK& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    const float* scores = a.scores + a.first[r];
    std::int32_t* out = a.index + a.index_first[r];
    if (a.keep[r] >= n) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(i);
      return;
    }
    std::vector<Candidate> row(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) row[static_cast<std::size_t>(i)] = {rank_value(scores[i]), i};
    take_best(row, a.keep[r], a.peer_ties);
    for (std::int32_t i = 0; i < a.keep[r]; ++i) out[i] = static_cast<std::int32_t>(row[static_cast<std::size_t>(i)].at);
    std::sort(out, out + a.keep[r]);
  });
}

namespace {

constexpr float kFirst = std::numeric_limits<float>::infinity();

// The pool's scores, floor tokens first.
std::vector<Candidate> with_floors(const TopKPooled& a, std::int32_t row0, std::int32_t row_end) {
  std::vector<Candidate> pool, row;
  for (std::int32_t r = row0; r < row_end; ++r) {
    const float* scores = a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r];
    row.clear();
    for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) row.push_back({rank_value(scores[i - a.first[r]]), i});
    const std::size_t begin = pool.size();
    pool.insert(pool.end(), row.begin(), row.end());
    const auto floor = a.floor_tokens == nullptr ? 0 : std::min<std::int32_t>(a.floor_tokens[r], static_cast<std::int32_t>(row.size()));
    take_best(row, floor, true);
    for (std::int32_t i = 0; i < floor; ++i)
      pool[begin + static_cast<std::size_t>(row[static_cast<std::size_t>(i)].at - a.first[r])].score = kFirst;
  }
  return pool;
}

void choose_as_peer(const TopKPooled& a, std::int32_t p) {
  const std::int32_t row0 = p * a.rows_per_pool, row_end = row0 + a.rows_per_pool;
  const bool drops = a.ties == TopKPooled::Ties::kPeerDropped;
  std::vector<Candidate> pool = with_floors(a, row0, row_end);
  if (a.marked != nullptr && !drops)
    for (const Candidate& c : pool)
      if (c.score == kFirst) a.marked[c.at] = kFirst;
  if (drops)
    for (Candidate& c : pool) c.score = -c.score;
  const auto all = static_cast<std::int64_t>(pool.size()), kept = std::clamp<std::int64_t>(a.budget[p], 0, all);
  const std::int64_t taken = drops ? all - kept : kept;
  take_best(pool, static_cast<std::int32_t>(taken), true);
  for (std::int32_t r = row0; r < row_end; ++r) a.keep[r] = drops ? static_cast<std::int32_t>(a.first[r + 1] - a.first[r]) : 0;
  for (std::int64_t i = 0; i < taken; ++i) {
    const std::int64_t at = pool[static_cast<std::size_t>(i)].at;
    a.keep[std::upper_bound(a.first + row0, a.first + row_end + 1, at) - a.first - 1] += drops ? -1 : 1;
    if (drops && a.marked != nullptr) a.marked[at] = -kFirst;
  }
}

}  // namespace

void run_cpu(const TopKPooled& a) {
  std::vector<Candidate> pool;
  for (std::int32_t p = 0; p < a.num_pools; ++p) {
    if (a.ties != TopKPooled::Ties::kLowerIndex) {
      choose_as_peer(a, p);
      continue;
    }
    const std::int32_t row0 = p * a.rows_per_pool, row_end = row0 + a.rows_per_pool;
    pool.clear();
    std::int64_t budget = a.budget[p];
    for (std::int32_t r = row0; r < row_end; ++r) {
      const auto begin = static_cast<std::ptrdiff_t>(pool.size());
      const float* scores = a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r];
      for (std::int64_t i = a.first[r]; i < a.first[r + 1]; ++i) pool.push_back({rank_value(scores[i - a.first[r]]), i});
      const auto floor = a.floor_tokens == nullptr ? 0 : std::min<std::int64_t>(a.floor_tokens[r], a.first[r + 1] - a.first[r]);
      a.keep[r] = static_cast<std::int32_t>(floor);
      if (floor == 0) continue;
      std::nth_element(pool.begin() + begin, pool.begin() + begin + floor - 1, pool.end(), better);
      pool.erase(pool.begin() + begin, pool.begin() + begin + floor);
      budget -= floor;
    }
    budget = std::clamp<std::int64_t>(budget, 0, static_cast<std::int64_t>(pool.size()));
    if (budget > 0) std::nth_element(pool.begin(), pool.begin() + budget - 1, pool.end(), better);
    for (std::int64_t i = 0; i < budget; ++i) {
      const std::int64_t at = pool[static_cast<std::size_t>(i)].at;
      const auto row = std::upper_bound(a.first + row0, a.first + row_end + 1, at) - a.first - 1;
      ++a.keep[row];
    }
  }
}

}  // namespace kvlab
