#pragma once

#include <cmath>
#include <limits>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Tokens i and i + 1 of a row are linked when cos(k_i, k_i+1) >= min_cosine (KVMerger, Wang et al. 2024, algorithm 1); a key of norm 0 has
// no links.
//   kRuns     target of a dropped token: the nearest kept token (the earlier of two) that links through dropped tokens reach, as a
//             place in the row's kept list; -1: none.
//   kNearest  target as if all were linked: the kept token of nearest position. Elastic Cache, Liu et al. 2024, section 3.2
//   kPivots   of each chain of linked tokens with finite scores >= 0 the one of largest score stays (ties: the earliest); the other
//             scores become -1 / score.
struct KeyLinks {
  enum class Kind : std::uint8_t { kRuns, kNearest, kPivots };
  PartedRows parts;  // of kPivots only kv
  Kind kind = Kind::kRuns;
  float min_cosine = 0.75F;
  std::int32_t* target = nullptr;  // [total_dropped()] out, but for kPivots
  float* scores = nullptr;         // [kv.total()] in and out, of kPivots

  [[nodiscard]] OpCall cost() const {
    const KvRows& kv = parts.kv;
    const bool nearest = kind == Kind::kNearest;
    const std::int64_t n = kv.total(), outputs = kind == Kind::kPivots ? n : parts.total_dropped();
    return {.op = kind == Kind::kRuns ? "key_runs"
                  : nearest           ? "nearest_anchor"
                                      : "key_pivots",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = outputs,
            .bytes = n * (nearest ? 8 : kv.head_dim * kv.kv_bytes + 4) + 4 * outputs,
            .flops = n * (nearest ? 2 : 4 * kv.head_dim)};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return kind == Kind::kNearest ? 0 : 4LL * parts.kv.len[row]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const auto row = static_cast<std::int32_t>(at);
    const std::int32_t n = parts.kv.len[row];
    if (kind == Kind::kNearest) return team.each(parts.num_dropped(row), [&](std::int64_t j) { find_nearest(row, j); });
    float* const linked = team.room() + 2 * n;
    find_links(team, row, reinterpret_cast<double*>(team.room()), linked);
    if (kind == Kind::kPivots) return lower_members(team, scores + parts.kv.first[row], n, linked, team.room());
    team.each(parts.num_dropped(row), [&](std::int64_t j) { find_target(row, j, linked); });
  }

 private:
  // linked[i] != 0: token i belongs with the one before it.
  template <class Team>
  KVLAB_BODY void find_links(const Team& team, std::int32_t row, double* norm, float* linked) const {
    const KvRows& kv = parts.kv;
    const auto product = [&](std::int32_t i, std::int32_t j) {
      const std::int64_t a = kv.slot(row, i) * kv.head_dim, b = kv.slot(row, j) * kv.head_dim;
      double sum = 0;
      for (std::int32_t c = 0; c < kv.head_dim; ++c)
        sum += static_cast<double>(element_at(kv.k, a + c, kv.type)) * static_cast<double>(element_at(kv.k, b + c, kv.type));
      return sum;
    };
    team.each(kv.len[row],
              [&](std::int64_t i) { norm[i] = std::sqrt(product(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i))); });
    team.each(kv.len[row], [&](std::int64_t at) {
      const auto i = static_cast<std::int32_t>(at);
      const bool is_linked =
          i > 0 && norm[i] * norm[i - 1] > 0 && product(i, i - 1) >= static_cast<double>(min_cosine) * norm[i] * norm[i - 1];
      linked[i] = is_linked ? 1.0F : 0.0F;
    });
  }

  KVLAB_BODY void find_nearest(std::int32_t row, std::int64_t j) const {
    const std::int32_t* const kept = parts.kept + parts.kept_first[row];
    const std::int32_t token = parts.dropped[parts.dropped_first[row] + j], next = token - static_cast<std::int32_t>(j);
    const auto position = [&](std::int32_t t) { return parts.kv.position[parts.kv.slot(row, t)]; };
    const bool is_next =
        next < parts.num_kept(row) && (next == 0 || position(kept[next]) - position(token) < position(token) - position(kept[next - 1]));
    target[parts.dropped_first[row] + j] = is_next ? next : next - 1;
  }
  KVLAB_BODY void find_target(std::int32_t row, std::int64_t at, const float* linked) const {
    const std::int32_t* const dropped = parts.dropped + parts.dropped_first[row];
    const std::int32_t n = parts.kv.len[row], last = parts.num_dropped(row) - 1;
    const auto is_linked = [&](std::int32_t token) { return token < n && linked[token] != 0; };
    const auto j = static_cast<std::int32_t>(at);
    std::int32_t left = j, right = j;
    while (is_linked(dropped[left]) && left > 0 && dropped[left - 1] + 1 == dropped[left]) --left;
    while (is_linked(dropped[right] + 1) && right < last && dropped[right] + 1 == dropped[right + 1]) ++right;
    const bool to_left = is_linked(dropped[left]), to_right = is_linked(dropped[right] + 1);
    const std::int32_t before = dropped[j] - j;
    target[parts.dropped_first[row] + j] = to_left && (!to_right || j - left <= right - j) ? before - 1 : to_right ? before : -1;
  }

  template <class Team>
  KVLAB_BODY static void lower_members(const Team& team, float* score, std::int32_t n, const float* linked, float* old) {
    team.each(n, [&](std::int64_t i) { old[i] = score[i]; });
    const auto joins = [&](std::int64_t i) { return linked[i] != 0 && !std::isinf(old[i]) && !std::isinf(old[i - 1]); };
    team.each(n, [&](std::int64_t at) {
      bool is_pivot = true;
      for (std::int64_t i = at; is_pivot && i > 0 && joins(i); --i) is_pivot = old[i - 1] < old[at];
      for (std::int64_t i = at + 1; is_pivot && i < n && joins(i); ++i) is_pivot = old[i] <= old[at];
      constexpr float kLeast = std::numeric_limits<float>::min();
      if (!is_pivot) score[at] = -1.0F / (old[at] < kLeast ? kLeast : old[at]);
    });
  }
};
KVLAB_ROW_OP(KeyLinks)

}  // namespace kvlab
