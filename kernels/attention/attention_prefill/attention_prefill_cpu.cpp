#include <cmath>
#include <limits>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Block = Eigen::Map<Matrix>;
using ConstBlock = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

// A tile of scores is kRows x kKeys: 128 KiB, which stays in the second-level cache with its queries, keys and values.
constexpr std::int64_t kRows = 128, kKeys = 256;

std::int64_t group_of(const AttentionPrefill& a) { return a.q_heads / a.kv_heads; }
std::int64_t block_tokens(const AttentionPrefill& a) {
  return std::clamp<std::int64_t>(kRows / group_of(a), 1, std::max<std::int64_t>(a.new_tokens, 1));
}

// The first key that the query at a position sees.
std::int64_t first_key(const AttentionPrefill& a, std::int64_t position) {
  return a.window == 0 ? 0 : std::max<std::int64_t>(0, position + 1 - a.window);
}

// The queries of some tokens that share one KV head: row t * group + g is query head g of the group at token t.
struct Tile {
  float *q, *out, *scores, *max, *sum;
  std::int64_t rows;
};

std::int64_t tile_floats(const AttentionPrefill& a) { return block_tokens(a) * group_of(a) * (2 * a.head_dim + kKeys + 2); }

// Blocks of tokens times KV heads, and how many of them run at once, each with a tile of its own.
std::int64_t num_tasks(const AttentionPrefill& a) { return ceil_div(a.new_tokens, block_tokens(a)) * a.kv_heads; }
std::int64_t slots(const AttentionPrefill& a) { return std::min<std::int64_t>(16, num_tasks(a)); }

Tile cut_scratch(const AttentionPrefill& a, std::int64_t slot) {
  const std::int64_t rows = block_tokens(a) * group_of(a);
  Tile t{a.scratch + slot * tile_floats(a), nullptr, nullptr, nullptr, nullptr, rows};
  t.out = t.q + rows * a.head_dim;
  t.scores = t.out + rows * a.head_dim;
  t.max = t.scores + rows * kKeys;
  t.sum = t.max + rows;
  return t;
}

// Turns a row's scores [begin, end) of `keys` into exp(score - max) and the others into 0; a new maximum shrinks what was summed before.
void soften(const Tile& tile, std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t keys, std::int64_t head_dim) {
  float* const whole = tile.scores + row * keys;
  float* const s = whole + begin;
  const std::int64_t visible = end - begin;
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
  std::fill(whole + end, whole + keys, 0.0F);
  if (max > tile.max[row]) {
    const float shrink = std::exp(tile.max[row] - max);
    tile.sum[row] *= shrink;
    Eigen::Map<Eigen::ArrayXf>(tile.out + row * head_dim, head_dim) *= shrink;
    tile.max[row] = max;
  }
  tile.sum[row] += sum.sum();
}

void attend(const AttentionPrefill& a, Tile tile, std::int64_t first, std::int64_t tokens, std::int64_t kv_head) {
  const std::int64_t group = group_of(a), d = a.head_dim, width = group * d, kv_stride = a.kv_heads * d;
  tile.rows = tokens * group;
  Block q(tile.q, tile.rows, d), out(tile.out, tile.rows, d);
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(a.q + (first + t) * a.q_heads * d + kv_head * width, width, tile.q + t * width);
  q *= a.scale;
  out.setZero();
  std::fill_n(tile.max, tile.rows, std::numeric_limits<float>::lowest());
  std::fill_n(tile.sum, tile.rows, 0.0F);
  const std::int64_t total = a.kv_before + first + tokens;
  for (std::int64_t key = first_key(a, a.kv_before + first); key < total; key += kKeys) {
    const std::int64_t keys = std::min(kKeys, total - key);
    const std::int64_t offset = key * kv_stride + kv_head * d;
    const ConstBlock k(a.k + offset, keys, d, Eigen::OuterStride<>(kv_stride)), v(a.v + offset, keys, d, Eigen::OuterStride<>(kv_stride));
    Block scores(tile.scores, tile.rows, keys);
    scores.noalias() = q * k.transpose();
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::int64_t position = a.kv_before + first + row / group;
      const std::int64_t end = std::clamp<std::int64_t>(position + 1 - key, 0, keys);
      soften(tile, row, std::clamp<std::int64_t>(first_key(a, position) - key, 0, end), end, keys, d);
    }
    out.noalias() += scores * v;
  }
  for (std::int64_t row = 0; row < tile.rows; ++row) out.row(row) /= tile.sum[row];
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(tile.out + t * width, width, a.out + (first + t) * a.q_heads * d + kv_head * width);
}

}  // namespace

std::int64_t scratch_floats(const AttentionPrefill& a) { return slots(a) * tile_floats(a); }

void run_cpu(const AttentionPrefill& a) {
  const std::int64_t step = block_tokens(a), tasks = num_tasks(a), in_flight = slots(a);
  for_each_in_parallel(in_flight, [&](std::int64_t slot) {
    const Tile tile = cut_scratch(a, slot);
    for (std::int64_t task = slot; task < tasks; task += in_flight) {  // later ones see more keys: each slot has its share of these
      const std::int64_t first = task / a.kv_heads * step;
      attend(a, tile, first, std::min(step, a.new_tokens - first), task % a.kv_heads);
    }
  });
}

}  // namespace kvlab
