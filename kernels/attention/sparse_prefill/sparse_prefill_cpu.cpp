#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attention_prefill/prefill_tile_cpu.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

namespace {

using prefill_cpu::kTileKeys;
using prefill_cpu::QueryTile;

// Heads [head, head + heads) with one list, tokens [first, first + tokens). Tile row t * heads + h: head `head + h`, token first + t.
struct SparseQueries {
  std::int64_t head, heads, first, tokens, list;
};

struct SparseScratch {
  QueryTile tile;
  float *k, *v;                         // [kTileKeys, head_dim]
  std::vector<std::int32_t> positions;  // of listed visible keys, ascending
  std::unique_ptr<float[]> memory;      // NOLINT
};

std::int64_t group_of(const SparsePrefill& a) { return a.q_heads / a.kv_heads; }
std::int64_t most_rows(const SparsePrefill& a) {
  return std::max<std::int64_t>(a.keys.block, std::min(prefill_cpu::kTileRows, group_of(a) * a.keys.block));
}

SparseScratch make_scratch(const SparsePrefill& a) {
  const std::int64_t tile = prefill_cpu::tile_floats(most_rows(a), a.head_dim), keys = kTileKeys * a.head_dim;
  SparseScratch s{{}, nullptr, nullptr, {}, std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(tile + 2 * keys))};  // NOLINT
  s.tile = prefill_cpu::cut_tile(s.memory.get(), most_rows(a), a.head_dim);
  s.k = s.memory.get() + tile, s.v = s.k + keys;
  return s;
}

bool same_list(const SparseKeys& keys, std::int64_t x, std::int64_t y) {
  return std::ranges::equal(listed_blocks(keys, x), listed_blocks(keys, y)) &&
         std::ranges::equal(listed_columns(keys, x), listed_columns(keys, y));
}

void list_positions(const SparsePrefill& a, const SparseQueries& q, std::vector<std::int32_t>& positions) {
  const std::int64_t first = a.kv_before + q.first, end = first + q.tokens, block = a.keys.block;
  const std::int64_t low = a.window == 0 ? 0 : std::max<std::int64_t>(0, first + 1 - a.window);
  positions.clear();
  for (const std::int32_t b : listed_blocks(a.keys, q.list))
    for (std::int64_t i = std::max(low, b * block); i < std::min(end, (b + 1) * block); ++i)
      positions.push_back(static_cast<std::int32_t>(i));
  const auto blocks = static_cast<std::ptrdiff_t>(positions.size());
  for (const std::int32_t i : listed_columns(a.keys, q.list))
    if (i >= low && i < end) positions.push_back(i);
  std::inplace_merge(positions.begin(), positions.begin() + blocks, positions.end());
}

// In place if contiguous, else copied.
prefill_cpu::KeyTile key_tile(const SparsePrefill& a, std::int64_t kv_head, std::span<const std::int32_t> positions, SparseScratch& s) {
  const std::int64_t d = a.head_dim, stride = a.kv_heads * d;
  const auto count = static_cast<std::int64_t>(positions.size());
  const auto at = [&](const float* pool, std::int32_t position) { return pool + position * stride + kv_head * d; };
  if (positions.back() - positions.front() == count - 1) return {at(a.k, positions.front()), at(a.v, positions.front()), count, stride};
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(at(a.k, positions[static_cast<std::size_t>(i)]), d, s.k + i * d);
    std::copy_n(at(a.v, positions[static_cast<std::size_t>(i)]), d, s.v + i * d);
  }
  return {s.k, s.v, count, d};
}

void attend_listed(const SparsePrefill& a, const SparseQueries& q, SparseScratch& s) {
  list_positions(a, q, s.positions);
  const std::span<const std::int32_t> all(s.positions);
  for (std::size_t i = 0; i < all.size(); i += kTileKeys) {
    const std::span<const std::int32_t> positions = all.subspan(i, std::min<std::size_t>(kTileKeys, all.size() - i));
    const auto below = [&](std::int64_t position) {
      return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
    };
    prefill_cpu::attend_tile(s.tile, key_tile(a, q.head / group_of(a), positions, s), [&](std::int64_t row) {
      const std::int64_t end = a.kv_before + q.first + row / q.heads + 1;
      return prefill_cpu::SeenKeys{a.window == 0 ? 0 : below(end - a.window), below(end)};
    });
  }
}

void attend_block(const SparsePrefill& a, const SparseQueries& q, SparseScratch& s) {
  const std::int64_t d = a.head_dim, width = q.heads * d;
  const auto line = [&](std::int64_t t) { return (q.first + t) * a.q_heads + q.head; };  // of [new_tokens, q_heads]
  s.tile.rows = q.tokens * q.heads;
  for (std::int64_t t = 0; t < q.tokens; ++t) std::copy_n(a.q + line(t) * d, width, s.tile.q + t * width);
  begin_rows(s.tile, a.scale);
  attend_listed(a, q, s);
  end_rows(s.tile);
  for (std::int64_t t = 0; t < q.tokens; ++t) std::copy_n(s.tile.out + t * width, width, a.out + line(t) * d);
  if (a.log_sum == nullptr) return;
  for (std::int64_t row = 0; row < s.tile.rows; ++row) {
    const float sum = s.tile.sum[row];
    a.log_sum[line(row / q.heads) + row % q.heads] =
        sum == 0.0F ? -std::numeric_limits<float>::infinity() : s.tile.max[row] + std::log(sum);
  }
}

void attend_group(const SparsePrefill& a, std::int64_t kv_head, std::int64_t query_block, SparseScratch& s) {
  const std::int64_t block = a.keys.block, at = (a.kv_before / block + query_block) * block - a.kv_before, blocks = query_blocks(a);
  const std::int64_t first = std::max<std::int64_t>(0, at), tokens = std::min(a.new_tokens, at + block) - first;
  const std::int64_t end = (kv_head + 1) * group_of(a), most_heads = most_rows(a) / block;
  for (std::int64_t head = kv_head * group_of(a), heads = 1; head < end; head += heads) {
    const SparseQueries q{head, 1, first, tokens, head * blocks + query_block};
    for (heads = 1; heads < most_heads && head + heads < end && same_list(a.keys, q.list, q.list + heads * blocks);) ++heads;
    attend_block(a, {head, heads, first, tokens, q.list}, s);
  }
}

}  // namespace

void run_cpu(const SparsePrefill& a) {
  const std::int64_t tasks = query_blocks(a) * a.kv_heads, in_flight = std::min<std::int64_t>(16, tasks);
  for_each_in_parallel(in_flight, [&](std::int64_t slot) {
    SparseScratch scratch = make_scratch(a);
    // Later query blocks see more keys.
    for (std::int64_t task = slot; task < tasks; task += in_flight) attend_group(a, task % a.kv_heads, task / a.kv_heads, scratch);
  });
}

}  // namespace kvlab
