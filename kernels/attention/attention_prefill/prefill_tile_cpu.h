#pragma once

#include <cmath>
#include <limits>

#include "kernels/lanes_cpu.h"

// For *_cpu.cpp files only, like Eigen.
namespace kvlab::prefill_cpu {

using TileRows = Eigen::Map<RowMatrix>;
// 128 KiB of scores, for the L2 cache.
constexpr std::int64_t kTileRows = 128, kTileKeys = 256;

// For one KV head, with online softmax.
struct QueryTile {
  float *q, *out;    // [rows, head_dim]
  float* scores;     // [rows, kTileKeys]
  float *max, *sum;  // [rows]
  std::int64_t rows, head_dim;
};

constexpr std::int64_t tile_floats(std::int64_t rows, std::int64_t head_dim) { return rows * (2 * head_dim + kTileKeys + 2); }

// scratch [tile_floats(rows, head_dim)].
inline QueryTile cut_tile(float* scratch, std::int64_t rows, std::int64_t head_dim) {
  QueryTile t{scratch, nullptr, nullptr, nullptr, nullptr, rows, head_dim};
  t.out = t.q + rows * head_dim;
  t.scores = t.out + rows * head_dim;
  t.max = t.scores + rows * kTileKeys;
  t.sum = t.max + rows;
  return t;
}

inline void begin_rows(const QueryTile& t, float scale) {
  TileRows(t.q, t.rows, t.head_dim) *= scale;
  TileRows(t.out, t.rows, t.head_dim).setZero();
  std::fill_n(t.max, t.rows, std::numeric_limits<float>::lowest());
  std::fill_n(t.sum, t.rows, 0.0F);
}

struct SeenKeys {
  std::int64_t begin, end;
};

// exp(score - max), 0 if hidden; rescales for a new maximum.
inline void soften(const QueryTile& tile, std::int64_t row, SeenKeys seen, std::int64_t keys) {
  float* const whole = tile.scores + row * keys;
  float* const s = whole + seen.begin;
  const std::int64_t visible = seen.end - seen.begin;
  std::fill(whole, s, 0.0F);
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  Lanes top = Lanes::Constant(tile.max[row]);
  for (std::int64_t i = 0; i < visible; i += kLanes) top = top.max(load(s + i, visible - i, kLowest));
  const float max = top.maxCoeff();
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < visible; i += kLanes) {
    const std::int64_t n = visible - i;
    const Lanes weight = (load(s + i, n, kLowest) - max).exp();
    store(weight, s + i, n);
    sum += n >= kLanes ? weight : load(s + i, n);
  }
  std::fill(whole + seen.end, whole + keys, 0.0F);
  if (max > tile.max[row]) {
    const float shrink = std::exp(tile.max[row] - max);
    tile.sum[row] *= shrink;
    Eigen::Map<Eigen::ArrayXf>(tile.out + row * tile.head_dim, tile.head_dim) *= shrink;
    tile.max[row] = max;
  }
  tile.sum[row] += sum.sum();
}

// Up to kTileKeys; [count, head_dim], rows `stride` floats apart.
struct KeyTile {
  const float *k, *v;
  std::int64_t count, stride;
};

// seen(row): the row's visible keys.
template <class Seen>
void attend_tile(const QueryTile& t, const KeyTile& keys, Seen&& seen) {
  const Eigen::OuterStride<> stride(keys.stride);
  TileRows scores(t.scores, t.rows, keys.count);
  scores.noalias() = TileRows(t.q, t.rows, t.head_dim) * RowMap(keys.k, keys.count, t.head_dim, stride).transpose();
  for (std::int64_t row = 0; row < t.rows; ++row) soften(t, row, seen(row), keys.count);
  TileRows(t.out, t.rows, t.head_dim).noalias() += scores * RowMap(keys.v, keys.count, t.head_dim, stride);
}

// Rows that saw nothing stay 0.
inline void end_rows(const QueryTile& t) {
  TileRows out(t.out, t.rows, t.head_dim);
  for (std::int64_t row = 0; row < t.rows; ++row)
    if (t.sum[row] != 0.0F) out.row(row) /= t.sum[row];
}

}  // namespace kvlab::prefill_cpu
