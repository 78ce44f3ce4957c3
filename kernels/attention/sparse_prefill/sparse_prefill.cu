#include <algorithm>

#include "kernels/attention/attention_prefill/prefill_kernel.cuh"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/layer/layer.h"

// prefill_tile() over listed keys.
namespace kvlab::prefill {

constexpr int kNoKey = 1 << 30;  // no query sees it

// `prefill` has group 1 and kv_heads = query heads.
template <class T>
struct SparseArgs {
  PrefillArgs<T> prefill;
  const std::int64_t *block_first, *column_first;  // column_first may be null
  const std::int32_t *blocks, *columns;
  std::int32_t sharing;  // query heads per KV head
  std::int32_t block;
};

// Blocks, in units of kPageUnit keys, then single keys (columns), in whole tiles.
struct SparseWork {
  Work tile;
  const std::int32_t *blocks, *columns;
  int units, singles;
  int block_tiles;
  int units_per_block;
};

// With tiles outside of the chunk.
template <int Rows, class T>
__device__ __forceinline__ int sparse_tiles(const SparseArgs<T>& a, int prompt, int tiles_per_block) {
  const int tokens = a.prefill.query_first[prompt + 1] - a.prefill.query_first[prompt];
  const int before = a.prefill.kv_before[prompt * (a.prefill.kv_heads / a.sharing)];
  return tokens == 0 ? 0 : ((before + tokens - 1) / a.block - before / a.block + 1) * tiles_per_block;
}

template <int Keys, class T>
__device__ __forceinline__ void find_list(const SparseArgs<T>& a, std::int64_t list, SparseWork& w) {
  w.units_per_block = a.block / kPageUnit;
  w.blocks = a.blocks + a.block_first[list];
  w.units = static_cast<int>(a.block_first[list + 1] - a.block_first[list]) * w.units_per_block;
  w.block_tiles = (w.units * kPageUnit + Keys - 1) / Keys;
  w.columns = a.column_first == nullptr ? nullptr : a.columns + a.column_first[list];
  w.singles = a.column_first == nullptr ? 0 : static_cast<int>(a.column_first[list + 1] - a.column_first[list]);
  w.tile.begin = 0;
  w.tile.end = w.block_tiles + (w.singles + Keys - 1) / Keys;
}

// False: no work. Longer lists first.
template <int Rows, int Keys, class T>
__device__ __forceinline__ bool find_sparse_work(const SparseArgs<T>& a, SparseWork& work) {
  const PrefillArgs<T>& p = a.prefill;
  const int number = static_cast<int>(blockIdx.x) / p.kv_heads, last = static_cast<int>(gridDim.x) / p.kv_heads - 1;
  const int each = (a.block + Rows - 1) / Rows;
  const Place at = find_tile(p.prompts, last - number, [&](int prompt) { return sparse_tiles<Rows>(a, prompt, each); });
  if (at.prompt == p.prompts) return false;
  Work& w = work.tile;
  w.head = static_cast<int>(blockIdx.x) - number * p.kv_heads;
  const int row = at.prompt * (p.kv_heads / a.sharing) + w.head / a.sharing, query_block = at.tile / each;
  w.first_token = p.query_first[at.prompt];
  w.before = p.kv_before[row];
  const int block_begin = (w.before / a.block + query_block) * a.block, begin = block_begin + (at.tile - query_block * each) * Rows;
  const int end = w.before + p.query_first[at.prompt + 1] - p.query_first[at.prompt];
  w.keys.high = min(min(begin + Rows, block_begin + a.block), end);
  w.first = max(begin, w.before) - w.before;
  w.rows = w.keys.high - w.before;
  if (w.first >= w.rows) return false;
  w.keys.page = p.page + p.page_begin[row];
  w.keys.page_units = p.page_units;
  w.keys.low = p.window > 0 ? max(0, w.before + w.first + 1 - p.window) : 0;
  const std::int64_t blocks_before = (last - number - at.tile) / each;
  const int blocks = sparse_tiles<Rows>(a, at.prompt, each) / each;
  find_list<Keys>(a, blocks_before * p.kv_heads + static_cast<std::int64_t>(w.head) * blocks + query_block, work);
  return true;
}

struct Entries {
  std::int32_t* place;     // [kListed] in the pool, in entries
  std::int32_t* position;  // [kListed] of the first key; kNoKey: none
};

// Entries [first, first + kListed) of a part.
template <int Threads>
__device__ __forceinline__ void list_entries(const SparseWork& w, bool singles, int first, const Entries& to) {
  const RowPages& keys = w.tile.keys;
  const auto width = singles ? 1U : static_cast<unsigned>(kPageUnit);
  const auto in_page = static_cast<unsigned>(keys.page_units) * (kPageUnit / width);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kListed; i += Threads) {
    const int entry = first + i, in_block = entry / w.units_per_block;
    to.place[i] = 0, to.position[i] = kNoKey;
    if (entry >= (singles ? w.singles : w.units)) continue;
    const auto at = static_cast<unsigned>(singles ? w.columns[entry] : w.blocks[in_block] * w.units_per_block + entry % w.units_per_block);
    const auto position = static_cast<int>(at * width), page = static_cast<int>(at / in_page);
    if (position >= keys.high || position + static_cast<int>(width) <= keys.low) continue;
    to.place[i] = static_cast<std::int32_t>(keys.page[page] * in_page + at % in_page), to.position[i] = position;
  }
}

// Keys keys from entry 0, values after them, and positions. Zeros for none.
template <int D, int Keys, int Threads, class T>
__device__ __forceinline__ void copy_entries(T* tile, std::int32_t* positions, const PrefillArgs<T>& a, const Entries& from, bool singles,
                                             int high) {
  constexpr int kChunks = D / 8, kStep = Threads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, shift = singles ? 0 : 4;
  static_assert(kPageUnit == 1 << 4 && Keys % kStep == 0);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / kChunks; i < Keys; i += kStep) {
    const int entry = i >> shift, in_entry = i - (entry << shift), position = from.position[entry] + in_entry;
    const std::int64_t slot = (static_cast<std::int64_t>(from.place[entry]) << shift) + in_entry;
    const bool valid = position < high;
    T* const to = tile + place<D>(i, chunk);
    cp_async<16>(to, a.k + (valid ? slot * D : 0) + chunk * 8, valid);
    cp_async<16>(to + Keys * D, a.v + (valid ? slot * D : 0) + chunk * 8, valid);
    if (chunk == 0) positions[i] = valid ? position : kNoKey;
  }
}

// Hidden logits become -inf.
template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void mask_listed(State<D, RowTiles, Keys>& x, const PrefillArgs<T>& a, const Work& w, int row,
                                            const std::int32_t* positions) {
  const int lane = lane_index(), earliest = a.window > 0 ? w.keys.high - a.window : 0, latest = w.before + w.first;
  if (positions[0] >= earliest && positions[0] <= latest && positions[Keys - 1] <= latest) return;  // all rows see them all
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = w.before + w.first + row + 16 * m + 8 * half + lane / 4, before = a.window > 0 ? last - a.window : -1;
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
        const int2 key = *reinterpret_cast<const int2*>(positions + 8 * n + 2 * (lane % 4));
        if (key.x > last || key.x <= before) x.s[m][n][2 * half] = minus_infinity();
        if (key.y > last || key.y <= before) x.s[m][n][2 * half + 1] = minus_infinity();
      }
    }
  }
}

// Grid [tiles of all prompts (a bound) * query heads]. Shared memory as in prefill_tile().
template <class T, int D, int RowTiles, int Warps, int Keys, int Blocks>
__global__ void __launch_bounds__(Warps* kWarpSize, Blocks) sparse_tile(SparseArgs<T> a) {
  constexpr int kRows = 16 * RowTiles * Warps, kThreads = Warps * kWarpSize, kTile = Keys * D;
  KVLAB_DYNAMIC_SHARED(T, q);
  KVLAB_SHARED(std::int32_t, list, 2 * kListed);
  KVLAB_SHARED(std::int32_t, positions, 2 * Keys);
  T* const stages = q + kRows * D;
  KVLAB_SHARED(SparseWork, work, 1);
  {
    SparseWork found;
    if (!find_sparse_work<kRows, Keys>(a, found)) return;
    if (threadIdx.x == 0) work[0] = found;
  }
  __syncthreads();
  const Work& w = work[0].tile;
  const int row = warp_index() * 16 * RowTiles;
  const auto copy_tile = [&](int tile) {
    const bool singles = tile >= work[0].block_tiles;
    const int entry = singles ? (tile - work[0].block_tiles) * Keys : tile * (Keys / kPageUnit);
    if (entry % kListed == 0) {
      list_entries<kThreads>(work[0], singles, entry, {list, list + kListed});
      __syncthreads();
    }
    const Entries entries{list + entry % kListed, list + kListed + entry % kListed};
    copy_entries<D, Keys, kThreads>(stages + tile % 2 * 2 * kTile, positions + tile % 2 * Keys, a.prefill, entries, singles, w.keys.high);
  };
  State<D, RowTiles, Keys> x;
  copy_queries<D, kRows, kThreads>(q, a.prefill.q + w.first_token * a.prefill.q_stride + static_cast<std::int64_t>(w.head) * D,
                                   a.prefill.q_stride, 1, w.first, w.rows);
  if (w.end > 0) copy_tile(0);
  cp_async_commit();
  const SharedPlace rows = rows_operand<D>(q + row * D), keys = keys_operand<D>(stages), values = values_operand<D>(stages + kTile);
  for (int tile = 0, stage = 0; tile < w.end; ++tile, stage ^= 2 * kTile) {
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < w.end) copy_tile(tile + 1);
    cp_async_commit();
    multiply_keys<T, D, RowTiles, Keys>(x.s, rows, keys + 2 * stage);
    mask_listed(x, a.prefill, w, row, positions + tile % 2 * Keys);
    move_top(x, a.prefill.scale);
    exponentiate(x, a.prefill.scale);
    multiply_values<T>(x, values + 2 * stage);
  }
  cp_async_wait<0>();
  __syncthreads();
  finish(x, a.prefill, w, q, row);
}

}  // namespace kvlab::prefill

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

using CompiledSparse = Compiled<SparseArgs>;

template <int D, int RowTiles, int Warps, int Keys, int Blocks>
constexpr CompiledSparse compiled_sparse() {
  return {{D, RowTiles, Warps, Keys},
          Blocks,
          sparse_tile<f16, D, RowTiles, Warps, Keys, Blocks>,
          sparse_tile<bf16, D, RowTiles, Warps, Keys, Blocks>};
}

// By preference. 128 rows need query blocks of 128 tokens.
std::vector<CompiledSparse> sparse_kernels(std::int32_t head_dim) {
  if (head_dim == 64) return {compiled_sparse<64, 2, 4, 64, 2>(), compiled_sparse<64, 1, 4, 64, 3>()};
  if (head_dim == 128)
    return {compiled_sparse<128, 2, 4, 64, 2>(), compiled_sparse<128, 1, 4, 64, 2>(), compiled_sparse<128, 1, 4, 32, 3>()};
  if (head_dim == 256) return {compiled_sparse<256, 1, 4, 32, 2>()};
  return {};
}

CompiledSparse choose_sparse(const DeviceSparsePrefill& a, const GpuInfo& gpu) {
  const std::vector<CompiledSparse> all = sparse_kernels(a.prefill.head_dim);
  if (const CompiledSparse* const c = tuned("sparse_prefill", all, a.prefill)) return *c;
  for (const CompiledSparse& c : all) {
    const auto fixed =
        static_cast<std::int64_t>(sizeof(SparseWork) + sizeof(std::int32_t) * static_cast<std::size_t>(2 * kListed + 2 * c.tiles.keys));
    if (c.tiles.rows() <= std::max(64, a.keys.block) && c.tiles.shared_bytes() + fixed <= gpu.shared_bytes_per_block) return c;
  }
  refuse_shared_memory("sparse_prefill", a.prefill.head_dim, gpu);
}

template <class T>
SparseArgs<T> sparse_args(const DeviceSparsePrefill& a) {
  const DevicePrefill& p = a.prefill;
  SparseArgs<T> args{};
  args.prefill = prefill_args<T>(p);
  args.prefill.kv_heads = p.q_heads, args.prefill.group = 1;
  args.block_first = a.keys.block_first, args.column_first = a.keys.column_first;
  args.blocks = a.keys.blocks, args.columns = a.keys.columns;
  args.sharing = p.q_heads / p.kv_heads, args.block = a.keys.block;
  return args;
}

// [tokens, heads, head_dim] to f16 [heads, tokens, head_dim].
f16* round_heads(const float* x, std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, std::int64_t room, CudaContext& cuda) {
  f16* const rounded = cuda.scratch<f16>(heads * room * head_dim);
  for (std::int64_t h = 0; h < heads; ++h)
    run_cuda(DeviceConvert{x + h * head_dim, rounded + h * room * head_dim, tokens, head_dim, heads * head_dim, head_dim, ElementType::kF32,
                           ElementType::kF16},
             cuda);
  return rounded;
}

}  // namespace

std::vector<PrefillVariant> sparse_prefill_variants(std::int32_t head_dim) { return variants_of(sparse_kernels(head_dim)); }

void run_cuda(const DeviceSparsePrefill& a, CudaContext& cuda) {
  if (a.prefill.tokens == 0 || a.prefill.prompts == 0) return;
  check(a.prefill, cuda.gpu());
  if (!a.prefill.causal) throw CudaError("sparse_prefill: queries outside of the cache are not supported");
  if (a.prefill.parts != nullptr || a.prefill.splits > 1)
    throw CudaError("sparse_prefill: keys are not split; leave splits and parts unset");
  if (a.keys.block < kPageUnit || a.keys.block % kPageUnit != 0)
    throw CudaError("sparse_prefill: blocks of " + std::to_string(a.keys.block) + " tokens; a multiple of 16 is needed");
  const CompiledSparse c = choose_sparse(a, cuda.gpu());
  // First and last query blocks may be partial.
  const std::int64_t blocks = a.prefill.tokens / a.keys.block + 2LL * a.prefill.prompts;
  const std::int64_t tiles = blocks * ceil_div(a.keys.block, c.tiles.rows());
  launch_compiled("sparse_prefill", cuda, c, a.prefill.type, grid_of(tiles * a.prefill.q_heads, 1),
                  [&](auto zero) { return sparse_args<decltype(zero)>(a); });
}

void run_cuda(const SparsePrefill& a, CudaContext& cuda) {
  if (a.new_tokens == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t total = a.kv_before + a.new_tokens, room = ceil_div<std::int64_t>(total, kPageUnit) * kPageUnit;
  const std::int64_t width = a.q_heads * a.head_dim, lists = a.q_heads * query_blocks(a);
  std::vector<std::int32_t> query_first{0, static_cast<std::int32_t>(a.new_tokens)}, page, before;
  for (std::int64_t h = 0; h < a.kv_heads; ++h) {
    page.push_back(static_cast<std::int32_t>(h));  // one of all tokens
    before.push_back(static_cast<std::int32_t>(a.kv_before));
  }
  DeviceSparsePrefill op;
  DevicePrefill& p = op.prefill;
  f16 *const q = cuda.scratch<f16>(a.new_tokens * width), *const out = cuda.scratch<f16>(a.new_tokens * width);
  run_cuda(DeviceConvert{a.q, q, a.new_tokens, width, 0, 0, ElementType::kF32, ElementType::kF16}, cuda);
  p.q = q, p.out = out, p.log_sum = a.log_sum, p.type = ElementType::kF16;
  p.k = round_heads(a.k, total, a.kv_heads, a.head_dim, room, cuda), p.v = round_heads(a.v, total, a.kv_heads, a.head_dim, room, cuda);
  p.query_first = cuda.upload(query_first.data(), 2), p.kv_before = cuda.upload(before.data(), a.kv_heads);
  p.page = p.page_begin = cuda.upload(page.data(), a.kv_heads);
  p.prompts = 1, p.tokens = query_first[1], p.longest_kv = static_cast<std::int32_t>(total);
  p.q_heads = static_cast<std::int32_t>(a.q_heads), p.kv_heads = static_cast<std::int32_t>(a.kv_heads);
  p.head_dim = static_cast<std::int32_t>(a.head_dim), p.page_tokens = static_cast<std::int32_t>(room);
  p.window = static_cast<std::int32_t>(a.window), p.scale = a.scale;
  op.keys = a.keys;
  op.keys.block_first = cuda.upload(a.keys.block_first, lists + 1), op.keys.column_first = cuda.upload(a.keys.column_first, lists + 1);
  run_cuda(op, cuda);
  run_cuda(DeviceConvert{out, a.out, a.new_tokens, width, 0, 0, ElementType::kF16, ElementType::kF32}, cuda);
}

}  // namespace kvlab
