#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Scores pooled in place over windows of `width` tokens in [begin, begin + len) of each row.
//   kAvg, kMax  of the window around each token (width is odd). The average divides by `width` at the ends too
// Others part the range into windows; the last may be shorter. A token gets
//   kMean, kMeanOfTopHalf  the mean of its window, or of its larger half (rounded up)
//   kShare                 its share of the sum; 0 leaves the scores
//   kBestUnit              the largest mean of a unit of `unit_tokens` (len and width are whole units)
// kBlockMax reads `units`: scores[first[r] + b] = max of the row's units [b * stride - before, b * stride - before + width): LServe's
// logical pages (Yang et al. 2025), InfLLM v2's kernels.
struct Pool1d {
  enum class Kind : std::uint8_t { kAvg, kMax, kMean, kMeanOfTopHalf, kShare, kBestUnit, kBlockMax };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* begin = nullptr;  // [num_rows]; null: 0
  const std::int32_t* len = nullptr;    // [num_rows]
  float* scores = nullptr;
  std::int32_t width = 1;
  Kind kind = Kind::kAvg;
  bool peer_sums = false;  // of kMean: sums as torch on a CPU with AVX2, for equal ties
  std::int32_t unit_tokens = 1;
  std::int32_t stride = 1, before = 0;       // of kBlockMax, as `units`
  const std::int64_t* unit_first = nullptr;  // [num_rows + 1]
  const float* units = nullptr;              // [unit_first[num_rows]]

  [[nodiscard]] OpCall cost() const {
    if (of_blocks()) {
      const std::int64_t read = unit_first[num_rows], blocks = first[num_rows];
      return {
          .op = "block_max", .rows = num_rows, .tokens = read, .outputs = blocks, .bytes = 4 * (read + blocks), .flops = blocks * width};
    }
    const bool of_units = kind == Kind::kBestUnit;
    std::int64_t n = slides() ? first[num_rows] : 0;
    for (std::int32_t r = 0; r < num_rows && !slides(); ++r) n += len[r];
    return {.op = slides()   ? "pool1d"
                  : of_units ? "unit_scores"
                             : "chunk_pool",
            .rows = num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = 8 * n,
            .flops = slides()   ? n * width
                     : of_units ? n + n / unit_tokens
                                : 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(begin, num_rows), visit(len, num_rows), visit(unit_first, num_rows + 1); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return windows(row) + (kind == Kind::kMeanOfTopHalf ? len[row] : 0); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    float *const of_row = scores + first[row] + (begin == nullptr ? 0 : begin[row]), *const pooled = team.room();
    const float* from = of_blocks() ? units + unit_first[row] : of_row;
    if (kind == Kind::kMeanOfTopHalf) {
      float* const sorted = pooled + windows(row);
      team.each(len[row], [&](std::int64_t i) { sorted[place(row, of_row, i)] = of_row[i]; });
      from = sorted;
    }
    if (width > kLongWindow && (kind == Kind::kMean || kind == Kind::kShare) && !peer_sums) {
      for (std::int64_t w = 0; w < windows(row); ++w) {
        const std::int64_t at = window_begin(w), n = window_end(row, w) - at;
        const float total = team.sum(n, [&](std::int64_t i) { return from[at + i]; });
        team.once([&] { pooled[w] = kind == Kind::kMean ? total / static_cast<float>(n) : total; });
      }
    } else {
      team.each(windows(row), [&](std::int64_t w) {
        const std::int64_t at = window_begin(w);
        pooled[w] = number(from + at, static_cast<std::int32_t>(window_end(row, w) - at));
      });
    }
    team.each(of_blocks() ? windows(row) : len[row], [&](std::int64_t i) {
      const float x = pooled[slides() || of_blocks() ? i : i / width];
      if (kind != Kind::kShare)
        of_row[i] = x;
      else if (x != 0.0F)
        of_row[i] /= x;
    });
  }

 private:
  static constexpr std::int32_t kLongWindow = 1024;  // beyond it the team sums

  [[nodiscard]] KVLAB_BOTH bool of_blocks() const { return kind == Kind::kBlockMax; }
  [[nodiscard]] KVLAB_BOTH bool slides() const { return kind == Kind::kAvg || kind == Kind::kMax; }
  [[nodiscard]] KVLAB_BOTH std::int64_t windows(std::int64_t row) const {
    if (of_blocks()) return first[row + 1] - first[row];
    return slides() ? len[row] : len[row] / width + (len[row] % width > 0);
  }
  [[nodiscard]] KVLAB_BODY std::int64_t window_begin(std::int64_t w) const {
    const std::int64_t from = of_blocks() ? w * stride - before : slides() ? w - width / 2 : w * width;
    return from < 0 ? 0 : from;
  }
  [[nodiscard]] KVLAB_BODY std::int64_t window_end(std::int64_t row, std::int64_t w) const {
    const std::int64_t end = of_blocks() ? w * stride - before + width : slides() ? w + width / 2 + 1 : (w + 1) * width;
    const std::int64_t most = of_blocks() ? unit_first[row + 1] - unit_first[row] : len[row];
    return end < most ? end : most;
  }
  // Token i's place in its window, the largest first.
  [[nodiscard]] KVLAB_BODY std::int64_t place(std::int64_t row, const float* x, std::int64_t i) const {
    const std::int64_t from = window_begin(i / width), end = window_end(row, i / width);
    std::int64_t at = from;
    for (std::int64_t j = from; j < end; ++j) at += x[j] > x[i] || (x[j] == x[i] && j < i) ? 1 : 0;
    return at;
  }
  [[nodiscard]] KVLAB_BODY float number(const float* x, std::int32_t n) const {
    const std::int32_t half = (n + 1) / 2;
    switch (kind) {
      case Kind::kAvg:
        return sum(x, n) / static_cast<float>(width);
      case Kind::kMax:
        return most(n, x[0], [&](std::int32_t i) { return x[i]; });
      case Kind::kBlockMax:
        return most(n, -INFINITY, [&](std::int32_t i) { return x[i]; });
      case Kind::kMeanOfTopHalf:
        return sum(x, half) / static_cast<float>(half);
      case Kind::kBestUnit:
        return most(n / unit_tokens, -INFINITY,
                    [&](std::int32_t i) { return sum(x + i * unit_tokens, unit_tokens) / static_cast<float>(unit_tokens); });
      case Kind::kMean:
        return (peer_sums ? sum_as_torch(x, n) : sum(x, n)) / static_cast<float>(n);
      case Kind::kShare:
        break;
    }
    return sum(x, n);
  }
  template <class F>
  [[nodiscard]] static KVLAB_BODY float most(std::int32_t n, float best, F&& f) {
    for (std::int32_t i = 0; i < n; ++i) {
      const float x = f(i);
      best = best < x ? x : best;
    }
    return best;
  }
  [[nodiscard]] static KVLAB_BODY float sum(const float* x, std::int32_t n) {
    float total = 0.0F;
    for (std::int32_t i = 0; i < n; ++i) total += x[i];
    return total;
  }
  // Under 512 terms as torch adds a contiguous line with AVX2: four sums of vectors of 8, then single terms, then lanes.
  [[nodiscard]] static KVLAB_BODY float sum_as_torch(const float* x, std::int32_t n) {
    constexpr std::int32_t kLanes = 8, kSums = 4;
    float lanes[kSums][kLanes] = {};
    const std::int32_t vectors = n / kLanes, even = vectors / kSums * kSums;
    for (std::int32_t v = 0; v < vectors; ++v)
      for (std::int32_t i = 0; i < kLanes; ++i) lanes[v < even ? v % kSums : 0][i] += x[v * kLanes + i];
    for (std::int32_t s = 1; s < kSums; ++s)
      for (std::int32_t i = 0; i < kLanes; ++i) lanes[0][i] += lanes[s][i];
    float total = 0;
    for (std::int32_t i = vectors * kLanes; i < n; ++i) total += x[i];
    for (std::int32_t i = 0; i < kLanes && vectors > 0; ++i) total += lanes[0][i];
    return total;
  }
};
KVLAB_ROW_OP(Pool1d)

}  // namespace kvlab
