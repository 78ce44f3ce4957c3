#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/prefill_tile_cpu.h"

namespace kvlab {

namespace {

using prefill_cpu::kTileKeys;

std::int64_t group_of(const AttentionPrefill& a) { return a.q_heads / a.kv_heads; }
std::int64_t block_tokens(const AttentionPrefill& a) {
  return std::clamp<std::int64_t>(prefill_cpu::kTileRows / group_of(a), 1, std::max<std::int64_t>(a.new_tokens, 1));
}

std::int64_t first_key(const AttentionPrefill& a, std::int64_t position) {
  return a.window == 0 ? 0 : std::max<std::int64_t>(0, position + 1 - a.window);
}

std::int64_t tile_rows(const AttentionPrefill& a) { return block_tokens(a) * group_of(a); }
std::int64_t floats_each(const AttentionPrefill& a) { return prefill_cpu::tile_floats(tile_rows(a), a.head_dim); }

// slots() run at once.
std::int64_t num_tasks(const AttentionPrefill& a) { return ceil_div(a.new_tokens, block_tokens(a)) * a.kv_heads; }
std::int64_t slots(const AttentionPrefill& a) { return std::min<std::int64_t>(16, num_tasks(a)); }

// Tile row t * group + g: query head g of the group at token first + t.
void attend(const AttentionPrefill& a, prefill_cpu::QueryTile tile, std::int64_t first, std::int64_t tokens, std::int64_t kv_head) {
  const std::int64_t group = group_of(a), d = a.head_dim, width = group * d, kv_stride = a.kv_heads * d;
  tile.rows = tokens * group;
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(a.q + (first + t) * a.q_heads * d + kv_head * width, width, tile.q + t * width);
  begin_rows(tile, a.scale);
  const std::int64_t total = a.kv_before + first + tokens;
  for (std::int64_t key = first_key(a, a.kv_before + first); key < total; key += kTileKeys) {
    const std::int64_t keys = std::min(kTileKeys, total - key), offset = key * kv_stride + kv_head * d;
    attend_tile(tile, {a.k + offset, a.v + offset, keys, kv_stride}, [&](std::int64_t row) {
      const std::int64_t position = a.kv_before + first + row / group;
      const std::int64_t end = std::clamp<std::int64_t>(position + 1 - key, 0, keys);
      return prefill_cpu::SeenKeys{std::clamp<std::int64_t>(first_key(a, position) - key, 0, end), end};
    });
  }
  end_rows(tile);
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(tile.out + t * width, width, a.out + (first + t) * a.q_heads * d + kv_head * width);
}

}  // namespace

std::int64_t scratch_floats(const AttentionPrefill& a) { return slots(a) * floats_each(a); }

void run_cpu(const AttentionPrefill& a) {
  const std::int64_t step = block_tokens(a), tasks = num_tasks(a), in_flight = slots(a);
  for_each_in_parallel(in_flight, [&](std::int64_t slot) {
    const prefill_cpu::QueryTile tile = prefill_cpu::cut_tile(a.scratch + slot * floats_each(a), tile_rows(a), a.head_dim);
    for (std::int64_t task = slot; task < tasks; task += in_flight) {  // later tasks see more keys
      const std::int64_t first = task / a.kv_heads * step;
      attend(a, tile, first, std::min(step, a.new_tokens - first), task % a.kv_heads);
    }
  });
}

}  // namespace kvlab
