#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Tokens [begin, begin + len) of each row in chunks of `chunk_tokens`; the last one may be shorter. Every token gets its chunk's mean, the
// mean of the chunk's larger half (rounded up), its share of the chunk's sum, or the largest mean of a unit of `unit_tokens` (len and
// chunks are whole units). Other tokens keep their scores. In place.
struct ChunkPool {
  enum class Kind : std::uint8_t { kMean, kMeanOfTopHalf, kShare, kBestUnit };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* begin = nullptr;  // [num_rows]; null: 0
  const std::int32_t* len = nullptr;    // [num_rows]
  float* scores = nullptr;
  std::int32_t chunk_tokens = 1;
  Kind kind = Kind::kMean;
  bool peer_sums = false;  // of kMean: sums in the order of torch on a CPU with AVX2, so that equal scores tie as there
  std::int32_t unit_tokens = 1;

  // Scores are read and written once; a sum per token, and with units a comparison each.
  [[nodiscard]] OpCall cost() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) n += len[r];
    if (kind == Kind::kBestUnit)
      return {.op = "unit_scores", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = n + n / unit_tokens};
    return {.op = "chunk_pool", .rows = num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = 2 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) { visit(first, num_rows + 1), visit(begin, num_rows), visit(len, num_rows); }
  // A number per chunk, and the scores sorted.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return chunks(row) + (kind == Kind::kMeanOfTopHalf ? len[row] : 0); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    float *const of_row = scores + first[row] + (begin == nullptr ? 0 : begin[row]), *const pooled = team.room();
    const float* from = of_row;
    if (kind == Kind::kMeanOfTopHalf) {
      float* const sorted = pooled + chunks(row);
      team.each(len[row], [&](std::int64_t i) { sorted[place(row, of_row, i)] = of_row[i]; });
      from = sorted;
    }
    if (chunk_tokens > kLongChunk && (kind == Kind::kMean || kind == Kind::kShare) && !peer_sums) {
      for (std::int64_t c = 0; c < chunks(row); ++c) {
        const float total = team.sum(tokens(row, c), [&](std::int64_t i) { return from[c * chunk_tokens + i]; });
        team.once([&] { pooled[c] = kind == Kind::kMean ? total / static_cast<float>(tokens(row, c)) : total; });
      }
    } else {
      team.each(chunks(row), [&](std::int64_t c) { pooled[c] = number(from + c * chunk_tokens, tokens(row, c)); });
    }
    team.each(len[row], [&](std::int64_t i) {
      const float x = pooled[i / chunk_tokens];
      if (kind != Kind::kShare)
        of_row[i] = x;
      else if (x != 0.0F)
        of_row[i] /= x;
    });
  }

 private:
  static constexpr std::int32_t kLongChunk = 1024;  // beyond it a sum by the whole team

  [[nodiscard]] KVLAB_BOTH std::int64_t chunks(std::int64_t row) const { return len[row] / chunk_tokens + (len[row] % chunk_tokens > 0); }
  [[nodiscard]] KVLAB_BODY std::int32_t tokens(std::int64_t row, std::int64_t chunk) const {
    const std::int64_t rest = len[row] - chunk * chunk_tokens;
    return rest < chunk_tokens ? static_cast<std::int32_t>(rest) : chunk_tokens;
  }
  // Of token i if each chunk is sorted, the largest first.
  [[nodiscard]] KVLAB_BODY std::int64_t place(std::int64_t row, const float* x, std::int64_t i) const {
    const std::int64_t chunk = i / chunk_tokens, from = chunk * chunk_tokens, end = from + tokens(row, chunk);
    std::int64_t at = from;
    for (std::int64_t j = from; j < end; ++j) at += x[j] > x[i] || (x[j] == x[i] && j < i) ? 1 : 0;
    return at;
  }
  [[nodiscard]] KVLAB_BODY float number(const float* x, std::int32_t n) const {
    const std::int32_t half = (n + 1) / 2;
    if (kind == Kind::kMeanOfTopHalf) return sum(x, half) / static_cast<float>(half);
    if (kind == Kind::kBestUnit) {
      float best = -INFINITY;
      for (std::int32_t at = 0; at < n; at += unit_tokens) {
        const float mean = sum(x + at, unit_tokens) / static_cast<float>(unit_tokens);
        best = best < mean ? mean : best;
      }
      return best;
    }
    const float all = peer_sums ? sum_as_torch(x, n) : sum(x, n);
    return kind == Kind::kMean ? all / static_cast<float>(n) : all;
  }
  [[nodiscard]] static KVLAB_BODY float sum(const float* x, std::int32_t n) {
    float total = 0.0F;
    for (std::int32_t i = 0; i < n; ++i) total += x[i];
    return total;
  }
  // Of fewer than 512 terms as torch adds a contiguous line with AVX2: vectors of 8, four of them at a time in separate sums, then the
  // terms that fill no vector, then the lanes.
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
KVLAB_ROW_OP(ChunkPool)

}  // namespace kvlab
