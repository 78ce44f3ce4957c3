#include <algorithm>
#include <array>

#include "kernels/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention_prefill/prefill_tiles.cuh"
#include "kernels/merge_partials/merge_partials.h"

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

template <class T>
struct PrefillArgs {
  const T *q, *k, *v;
  T* out;          // with one split
  float* parts;    // with several: [splits, tokens, q_heads, head_dim]
  float* log_sum;  // [splits, tokens, q_heads], may be null with one split
  const std::int32_t *query_first, *kv_before, *page_begin, *page;
  std::int64_t q_stride, tokens;
  std::int32_t prompts, kv_heads, group, page_units, window, splits;
  bool causal;
  float scale;  // times log2(e)
};

// What a block works on: rows [first, rows) of a prompt and KV head, keys [keys.low, keys.high), of these the tiles [begin, end).
struct Work {
  RowPages keys;
  std::int64_t first_token;  // of the prompt
  int head, first, rows, before, begin, end;
};

// Keys before the `seen`th are visible to the row.
template <class T>
__device__ __forceinline__ int seen(const PrefillArgs<T>& a, const Work& w, int row) {
  return a.causal ? w.before + row / a.group + 1 : w.before;
}

// False if there is nothing to do. The longest rows come first, so that short ones fill up the multiprocessors at the end.
template <int Rows, int Keys, class T>
__device__ __forceinline__ bool find_work(const PrefillArgs<T>& a, Work& w) {
  const int number = static_cast<int>(blockIdx.x) / a.kv_heads, tiles = static_cast<int>(gridDim.x) / a.kv_heads;
  const Place at = find_tile(a.query_first, a.prompts, a.group, Rows, tiles - 1 - number);
  if (at.prompt == a.prompts) return false;
  w.head = static_cast<int>(blockIdx.x) - number * a.kv_heads;
  const int row = at.prompt * a.kv_heads + w.head;
  w.first_token = a.query_first[at.prompt];
  w.first = at.tile * Rows;
  w.rows = (a.query_first[at.prompt + 1] - a.query_first[at.prompt]) * a.group;
  w.before = a.kv_before[row];
  w.keys.page = a.page + a.page_begin[row];
  w.keys.page_units = a.page_units;
  w.keys.high = seen(a, w, min(w.first + Rows, w.rows) - 1);
  w.keys.low = a.window > 0 ? max(0, seen(a, w, w.first) - a.window) : 0;
  const int begin = w.keys.low / Keys, end = (w.keys.high + Keys - 1) / Keys;
  const int each = (end - begin + a.splits - 1) / a.splits;
  w.begin = min(begin + static_cast<int>(blockIdx.y) * each, end);
  w.end = min(w.begin + each, end);
  return true;
}

// A warp's rows: 16 * RowTiles of them against D channels of V and Keys keys. With g = lane / 4 and c = 2 * (lane % 4) a lane holds of
// each 16 x 8 tile the columns c, c + 1 of row g and, in the upper half, of row g + 8.
template <int D, int RowTiles, int Keys>
struct State {
  float s[RowTiles][Keys / 8][4];  // logits, then probabilities relative to `top`
  float o[RowTiles][D / 8][4];
  float top[RowTiles][2];  // a logit that is not far below the row's largest so far; -inf: none seen
  float sum[RowTiles][2];  // of the lane's probabilities
};

template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void multiply_keys(State<D, RowTiles, Keys>& x, const T* q, const T* k, int row) {
#pragma unroll
  for (int m = 0; m < RowTiles; ++m)
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x.s[m][n][i] = 0.0F;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t a[RowTiles][4];
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) load_rows<D>(a[m], q, row + 16 * m, step);
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      std::uint32_t b[4];
      load_keys<D>(b, k, 16 * n, step);
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) multiply<T>(x.s[m][2 * n], x.s[m][2 * n + 1], a[m], b);
    }
  }
}

// Logits of keys that a row does not see become -inf.
template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void mask(State<D, RowTiles, Keys>& x, const PrefillArgs<T>& a, const Work& w, int row, int key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int end = min(seen(a, w, w.first + row + 16 * m + 8 * half + lane / 4), w.keys.high) - key - 2 * (lane % 4);
      const int begin = a.window > 0 ? end - a.window : -Keys;
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i >= end || 8 * n + i < begin) x.s[m][n][2 * half + i] = minus_infinity();
      }
    }
  }
}

// Takes up a tile's largest logits. The reference that exponentials are relative to moves, and what was summed shrinks, only when some
// row's largest logit outgrows it by a factor of 2^8: any reference gives the same quotient, and sums of numbers up to 2^8 fit f16.
template <int D, int RowTiles, int Keys>
__device__ __forceinline__ void move_top(State<D, RowTiles, Keys>& x, float scale) {
  constexpr float kRoom = 8.0F;
  float top[RowTiles][2];
  bool grows = false;
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = x.s[m][0][2 * half];
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) largest = fmaxf(fmaxf(largest, x.s[m][n][2 * half]), x.s[m][n][2 * half + 1]);
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      top[m][half] = largest;
      grows |= (largest - x.top[m][half]) * scale > kRoom;
    }
  }
  if (__any_sync(kAllLanes, grows) == 0) return;
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float larger = fmaxf(x.top[m][half], top[m][half]);
      const float shrink = larger == x.top[m][half] ? 1.0F : fast_exp2((x.top[m][half] - larger) * scale);
      x.top[m][half] = larger;
      x.sum[m][half] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) x.o[m][n][2 * half] *= shrink, x.o[m][n][2 * half + 1] *= shrink;
    }
  }
}

template <int D, int RowTiles, int Keys>
__device__ __forceinline__ void exponentiate(State<D, RowTiles, Keys>& x, float scale) {
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float reference = x.top[m][half] == minus_infinity() ? 0.0F : -x.top[m][half] * scale;
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& p = x.s[m][n][2 * half + i];
          p = fast_exp2(fmaf(p, scale, reference));
          x.sum[m][half] += p;
        }
      }
    }
  }
}

template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void multiply_values(State<D, RowTiles, Keys>& x, const T* v) {
#pragma unroll
  for (int step = 0; step < Keys / 16; ++step) {
    std::uint32_t p[RowTiles][4];
#pragma unroll
    for (int m = 0; m < RowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[m][i] = pack<T>(x.s[m][2 * step + i / 2][i % 2 * 2], x.s[m][2 * step + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t b[4];
      load_values<D>(b, v, 16 * step, n);
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) multiply<T>(x.o[m][2 * n], x.o[m][2 * n + 1], p[m], b);
    }
  }
}

// The finished rows: through the warp's part of the tile of queries, so that 16 bytes are written at a time, or as sums of a split.
template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void finish(State<D, RowTiles, Keys>& x, const PrefillArgs<T>& a, const Work& w, T* tile, int row) {
  const int lane = lane_index(), head = w.head * a.group;
  const std::int64_t q_heads = static_cast<std::int64_t>(a.kv_heads) * a.group;
  const auto line = [&](int r) { return (w.first_token + r / a.group) * q_heads + head + r % a.group; };  // of [tokens, q_heads]
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = x.sum[m][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
      const int at = row + 16 * m + 8 * half + lane / 4;
      const bool valid = w.first + at < w.rows;
      const std::int64_t to = static_cast<std::int64_t>(blockIdx.y) * a.tokens * q_heads + (valid ? line(w.first + at) : 0);
      if (valid && a.log_sum != nullptr && lane % 4 == 0)
        a.log_sum[to] = sum == 0.0F ? minus_infinity() : (x.top[m][half] * a.scale) * kLn2 + logf(sum);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float first = x.o[m][n][2 * half] * factor, second = x.o[m][n][2 * half + 1] * factor;
        if (a.parts == nullptr)
          *reinterpret_cast<std::uint32_t*>(tile + place<D>(at, n) + 2 * (lane % 4)) = pack<T>(first, second);
        else if (valid)
          *reinterpret_cast<float2*>(a.parts + to * D + 8 * n + 2 * (lane % 4)) = make_float2(first, second);
      }
    }
  }
  if (a.parts != nullptr) return;
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * RowTiles * (D / 8); i += kWarpSize) {
    const int at = row + i / (D / 8), chunk = i % (D / 8);
    if (w.first + at < w.rows)
      *reinterpret_cast<uint4*>(a.out + line(w.first + at) * D + chunk * 8) = *reinterpret_cast<const uint4*>(tile + place<D>(at, chunk));
  }
}

// Grid [tiles of all prompts (a bound) * kv_heads, splits]. Shared memory: the queries, and two stages of Keys keys and values: while one
// is multiplied the next one is copied.
template <class T, int D, int RowTiles, int Warps, int Keys, int Blocks>
__global__ void __launch_bounds__(Warps* kWarpSize, Blocks) prefill_tile(PrefillArgs<T> a) {
  constexpr int kRows = 16 * RowTiles * Warps, kThreads = Warps * kWarpSize, kUnits = Keys / kPageUnit, kTile = Keys * D;
  KVLAB_DYNAMIC_SHARED(T, q);
  KVLAB_SHARED(std::int32_t, list, kListed);
  T* const stages = q + kRows * D;
  Work w;
  if (!find_work<kRows, Keys>(a, w)) return;
  const int row = warp_index() * 16 * RowTiles;
  int listed = w.begin;  // first tile of the list
  const auto copy_tile = [&](int tile) {
    T* const to = stages + (tile - w.begin) % 2 * (2 * kTile);
    const std::int32_t* places = list + (tile - listed) * kUnits;
    copy_keys<D, Keys, kThreads>(to, a.k, places, tile * Keys, w.keys);
    copy_keys<D, Keys, kThreads>(to + kTile, a.v, places, tile * Keys, w.keys);
  };
  State<D, RowTiles, Keys> x;
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) x.top[m][half] = minus_infinity(), x.sum[m][half] = 0.0F;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x.o[m][n][i] = 0.0F;
  }
  const std::int64_t first_head = static_cast<std::int64_t>(w.head) * a.group * D;
  copy_queries<D, kRows, kThreads>(q, a.q + w.first_token * a.q_stride + first_head, a.q_stride, a.group, w.first, w.rows);
  list_units<kThreads>(w.keys, listed * kUnits, list);
  __syncthreads();
  if (w.begin < w.end) copy_tile(w.begin);
  cp_async_commit();
  // Tiles [clear_begin, clear_end) are seen whole by all rows.
  const int clear_end = seen(a, w, w.first) / Keys;
  const int clear_begin = a.window > 0 ? (seen(a, w, min(w.first + kRows, w.rows) - 1) - a.window + Keys - 1) / Keys : 0;
  for (int tile = w.begin; tile < w.end; ++tile) {
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < w.end) {
      if ((tile + 1 - listed) * kUnits == kListed) {
        listed = tile + 1;
        list_units<kThreads>(w.keys, listed * kUnits, list);
        __syncthreads();
      }
      copy_tile(tile + 1);
    }
    cp_async_commit();
    const T* const k = stages + (tile - w.begin) % 2 * (2 * kTile);
    multiply_keys<T>(x, q, k, row);
    if (tile < clear_begin || tile >= clear_end) mask(x, a, w, row, tile * Keys);
    move_top(x, a.scale);
    exponentiate(x, a.scale);
    multiply_values<T>(x, k + kTile);
  }
  cp_async_wait<0>();
  __syncthreads();
  finish(x, a, w, q, row);
}

template <class T>
using Kernel = void (*)(PrefillArgs<T>);

// The first one that suits is taken.
struct Compiled {
  PrefillVariant tiles;
  Kernel<f16> for_f16;
  Kernel<bf16> for_bf16;
};

template <int D, int RowTiles, int Warps, int Keys, int Blocks>
constexpr Compiled compiled() {
  return {{D, RowTiles, Warps, Keys},
          prefill_tile<f16, D, RowTiles, Warps, Keys, Blocks>,
          prefill_tile<bf16, D, RowTiles, Warps, Keys, Blocks>};
}

std::vector<Compiled> kernels(std::int32_t head_dim) {
  if (head_dim == 64) return {compiled<64, 2, 4, 64, 2>(), compiled<64, 1, 4, 64, 3>()};
  if (head_dim == 128)
    return {compiled<128, 2, 4, 64, 2>(), compiled<128, 1, 4, 64, 2>(), compiled<128, 1, 4, 32, 3>(), compiled<128, 2, 8, 64, 1>()};
  if (head_dim == 256) return {compiled<256, 1, 4, 32, 2>()};
  return {};
}

void check(const DevicePrefill& a, const GpuInfo& gpu) {
  const auto refuse = [](const std::string& why) { throw CudaError("attention_prefill: " + why); };
  if (kernels(a.head_dim).empty()) refuse("head_dim " + std::to_string(a.head_dim) + "; 64, 128 and 256 are there");
  if (a.kv_heads < 1 || a.q_heads % a.kv_heads != 0 || a.q_heads / a.kv_heads > 16 || a.q_heads < 1)
    refuse(std::to_string(a.q_heads) + " query heads on " + std::to_string(a.kv_heads) + " KV heads; 1 to 16 on each are possible");
  if (a.page_tokens < kPageUnit || a.page_tokens % kPageUnit != 0)
    refuse(std::to_string(a.page_tokens) + " tokens in a page; a multiple of 16 is needed");
  if (a.type == ElementType::kF32) refuse("f32; f16 and bf16 are there");
  if (a.type == ElementType::kBf16 && gpu.compute_capability < 80)
    refuse("bf16 needs compute capability 8.0, " + gpu.name + " has " + std::to_string(gpu.compute_capability / 10) + "." +
           std::to_string(gpu.compute_capability % 10) + "; f16 is possible");
  if (!(a.scale > 0.0F)) refuse("the scale must be above 0");
  if (a.q_stride % 8 != 0) refuse("q_stride " + std::to_string(a.q_stride) + " is not a multiple of 8");
}

// Upper bound: a prompt's last tile may be short.
std::int64_t tiles_of(const DevicePrefill& a, const PrefillVariant& v) {
  return static_cast<std::int64_t>(a.tokens) * (a.q_heads / a.kv_heads) / v.rows() + a.prompts;
}

bool fits(const PrefillVariant& v, const GpuInfo& gpu) { return v.shared_bytes() + 4 * kListed <= gpu.shared_bytes_per_block; }

// Few blocks leave multiprocessors idle: then smaller tiles.
Compiled choose(const DevicePrefill& a, const GpuInfo& gpu) {
  const std::vector<Compiled> all = kernels(a.head_dim);
  if (a.tuning >= static_cast<int>(all.size()))
    throw CudaError("attention_prefill: no tuning " + std::to_string(a.tuning) + " for head_dim " + std::to_string(a.head_dim));
  if (a.tuning >= 0) return all[static_cast<std::size_t>(a.tuning)];
  for (const Compiled& c : all) {
    const bool last = &c == &all.back(), fills = tiles_of(a, c.tiles) * a.kv_heads >= 2 * gpu.multiprocessors;
    if (fits(c.tiles, gpu) && (last || fills || c.tiles.row_tiles == 1)) return c;
  }
  throw CudaError("attention_prefill: head_dim " + std::to_string(a.head_dim) + " needs more shared memory than " + gpu.name + " has");
}

// How many parts the keys are split into so that there are two blocks for each multiprocessor; a part has four tiles at least.
std::int32_t choose_splits(const DevicePrefill& a, const PrefillVariant& v, const GpuInfo& gpu) {
  if (a.splits > 0) return a.splits;
  const std::int64_t blocks = tiles_of(a, v) * a.kv_heads, tiles = ceil_div(a.longest_kv, v.keys);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(2 * gpu.multiprocessors / blocks, 1, std::clamp<std::int64_t>(tiles / 4, 1, 64)));
}

template <class T>
void run(const DevicePrefill& a, const Compiled& c, CudaContext& cuda) {
  const std::int32_t splits = choose_splits(a, c.tiles, cuda.gpu());
  const std::int64_t rows = static_cast<std::int64_t>(a.tokens) * a.q_heads, width = static_cast<std::int64_t>(a.q_heads) * a.head_dim;
  const CudaContext::Frame frame(cuda);
  PrefillArgs<T> args{static_cast<const T*>(a.q),
                      static_cast<const T*>(a.k),
                      static_cast<const T*>(a.v),
                      static_cast<T*>(a.out),
                      nullptr,
                      a.log_sum,
                      a.query_first,
                      a.kv_before,
                      a.page_begin,
                      a.page,
                      a.q_stride == 0 ? width : a.q_stride,
                      a.tokens,
                      a.prompts,
                      a.kv_heads,
                      a.q_heads / a.kv_heads,
                      a.page_tokens / kPageUnit,
                      a.window,
                      splits,
                      a.causal,
                      a.scale * kLog2E};
  if (splits > 1) args.parts = cuda.scratch<float>(splits * rows * a.head_dim), args.log_sum = cuda.scratch<float>(splits * rows);
  const auto blocks = static_cast<unsigned>(tiles_of(a, c.tiles) * a.kv_heads);
  const LaunchShape shape{dim3(blocks, static_cast<unsigned>(splits)), dim3(static_cast<unsigned>(c.tiles.warps * kWarpSize)),
                          static_cast<std::size_t>(c.tiles.shared_bytes())};
  if constexpr (std::is_same_v<T, f16>)
    launch("attention_prefill", cuda, shape, c.for_f16, args);
  else
    launch("attention_prefill", cuda, shape, c.for_bf16, args);
  if (splits > 1) run_cuda(DeviceMergePartials{args.parts, args.log_sum, a.out, a.log_sum, splits, rows, a.head_dim, a.type}, cuda);
}

}  // namespace

std::vector<PrefillVariant> prefill_variants(std::int32_t head_dim) {
  std::vector<PrefillVariant> variants;
  for (const Compiled& c : kernels(head_dim)) variants.push_back(c.tiles);
  return variants;
}

void run_cuda(const DevicePrefill& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.prompts == 0) return;
  check(a, cuda.gpu());
  const Compiled c = choose(a, cuda.gpu());
  if (a.type == ElementType::kF16)
    run<f16>(a, c, cuda);
  else
    run<bf16>(a, c, cuda);
}

}  // namespace kvlab
