#pragma once

#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/prefill_tiles.cuh"

namespace kvlab::prefill {

template <class T>
struct PrefillArgs {
  const T *q, *k, *v;
  T* out;          // with one split
  float* parts;    // several splits: [splits, tokens, q_heads, head_dim]
  float* log_sum;  // [splits, tokens, q_heads], may be null with one split
  const std::int32_t *query_first, *kv_before, *page_begin, *page;
  std::int64_t q_stride, tokens;
  std::int32_t prompts, kv_heads, group, page_units, window, splits;
  bool causal;
  float scale;  // times log2(e)
};

// Rows [first, rows) of a prompt and KV head, keys [keys.low, keys.high) in tiles [begin, end).
struct Work {
  RowPages keys;
  std::int64_t first_token;  // of the prompt
  int head, first, rows, before, begin, end;
  int clear_begin, clear_end;  // visible to all rows
};

// First hidden key.
template <class T>
__device__ __forceinline__ int seen(const PrefillArgs<T>& a, const Work& w, int row) {
  return a.causal ? w.before + row / a.group + 1 : w.before;
}

// False: no work. Longest rows first.
template <int Rows, int Keys, class T>
__device__ __forceinline__ bool find_work(const PrefillArgs<T>& a, Work& w) {
  const int number = static_cast<int>(blockIdx.x) / a.kv_heads, tiles = static_cast<int>(gridDim.x) / a.kv_heads;
  const auto tiles_of = [&](int prompt) { return ((a.query_first[prompt + 1] - a.query_first[prompt]) * a.group + Rows - 1) / Rows; };
  const Place at = find_tile(a.prompts, tiles - 1 - number, tiles_of);
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
  w.clear_begin = a.window > 0 ? (w.keys.high - a.window + Keys - 1) / Keys : 0;
  w.clear_end = seen(a, w, w.first) / Keys;
  return true;
}

// Lane 4 g + t: columns 2t, 2t + 1 of rows g and g + 8 of each 16 x 8 tile.
template <int D, int RowTiles, int Keys>
struct State {
  float s[RowTiles][Keys / 8][4];  // logits, then probabilities relative to `top`
  float o[RowTiles][D / 8][4] = {};
  float top[RowTiles][2];       // near the row's largest logit; -inf: none
  float sum[RowTiles][2] = {};  // of the lane

  __device__ __forceinline__ State() {
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) top[m][0] = top[m][1] = minus_infinity();
  }
};

template <class T, int D, int RowTiles, int Keys>
__device__ __forceinline__ void multiply_keys(float (&s)[RowTiles][Keys / 8][4], SharedPlace q, SharedPlace k) {
#pragma unroll
  for (int m = 0; m < RowTiles; ++m)
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0F;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t a[RowTiles][4];
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) ldmatrix_x4(a[m], at(q, step) + 32 * D * m);
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4(b, at(k, step) + 32 * D * n);
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) multiply<T>(s[m][2 * n], s[m][2 * n + 1], a[m], b);
    }
  }
}

// Hidden logits become -inf.
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

// The reference moves for logits larger by a factor of 2^8; sums still fit f16.
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
__device__ __forceinline__ void multiply_values(State<D, RowTiles, Keys>& x, SharedPlace v) {
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
      ldmatrix_x4_trans(b, at(v, n) + 32 * D * step);
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) multiply<T>(x.o[m][2 * n], x.o[m][2 * n + 1], p[m], b);
    }
  }
}

// Through the warp's part of the query tile, or as sums of a split.
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

// Grid [tiles of all prompts (a bound) * kv_heads, splits]. Shared memory: queries, two stages of K and V.
template <class T, int D, int RowTiles, int Warps, int Keys, int Blocks>
__global__ void __launch_bounds__(Warps* kWarpSize, Blocks) prefill_tile(PrefillArgs<T> a) {
  constexpr int kRows = 16 * RowTiles * Warps, kThreads = Warps * kWarpSize, kUnits = Keys / kPageUnit, kTile = Keys * D;
  KVLAB_DYNAMIC_SHARED(T, q);
  KVLAB_SHARED(std::int32_t, list, kListed);
  T* const stages = q + kRows * D;
  KVLAB_SHARED(Work, work, 1);  // saves registers
  {
    Work found;
    if (!find_work<kRows, Keys>(a, found)) return;
    if (threadIdx.x == 0) work[0] = found;
  }
  __syncthreads();
  const Work& w = work[0];
  const int row = warp_index() * 16 * RowTiles;
  const auto copy_tile = [&](int tile, int to) {
    const int listed = (tile - w.begin) % (kListed / kUnits);
    copy_keys<D, Keys, kThreads, true>(stages + to, a.k, a.v, list + listed * kUnits, tile * Keys, w.keys);
  };
  State<D, RowTiles, Keys> x;
  const std::int64_t first_head = static_cast<std::int64_t>(w.head) * a.group * D;
  copy_queries<D, kRows, kThreads>(q, a.q + w.first_token * a.q_stride + first_head, a.q_stride, a.group, w.first, w.rows);
  list_units<kThreads>(w.keys, w.begin * kUnits, list);
  __syncthreads();
  if (w.begin < w.end) copy_tile(w.begin, 0);
  cp_async_commit();
  const SharedPlace rows = rows_operand<D>(q + row * D), keys = keys_operand<D>(stages), values = values_operand<D>(stages + kTile);
  for (int tile = w.begin, stage = 0; tile < w.end; ++tile, stage ^= 2 * kTile) {
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < w.end) {
      if ((tile + 1 - w.begin) % (kListed / kUnits) == 0) {
        list_units<kThreads>(w.keys, (tile + 1) * kUnits, list);
        __syncthreads();
      }
      copy_tile(tile + 1, stage ^ (2 * kTile));
    }
    cp_async_commit();
    multiply_keys<T, D, RowTiles, Keys>(x.s, rows, keys + 2 * stage);
    if (tile < w.clear_begin || tile >= w.clear_end) mask(x, a, w, row, tile * Keys);
    move_top(x, a.scale);
    exponentiate(x, a.scale);
    multiply_values<T>(x, values + 2 * stage);
  }
  cp_async_wait<0>();
  __syncthreads();
  finish(x, a, w, q, row);
}

// A kernel for both types.
template <template <class> class Args>
struct Compiled {
  PrefillVariant tiles;
  int blocks;  // per multiprocessor, by registers
  void (*for_f16)(Args<f16>);
  void (*for_bf16)(Args<bf16>);
};

template <class Kernels>
std::vector<PrefillVariant> variants_of(const Kernels& all) {
  std::vector<PrefillVariant> variants;
  for (const auto& c : all) variants.push_back(c.tiles);
  return variants;
}

// The one that a.tuning names; null: automatic.
template <class Kernels>
auto tuned(const std::string& op, const Kernels& all, const DevicePrefill& a) {
  if (a.tuning >= static_cast<int>(all.size()))
    throw CudaError(op + ": no tuning " + std::to_string(a.tuning) + " for head_dim " + std::to_string(a.head_dim));
  return a.tuning < 0 ? nullptr : &all[static_cast<std::size_t>(a.tuning)];
}

[[noreturn]] inline void refuse_shared_memory(const std::string& op, std::int64_t head_dim, const GpuInfo& gpu) {
  throw CudaError(op + ": head_dim " + std::to_string(head_dim) + " needs more shared memory than " + gpu.name + " has");
}

inline std::int64_t q_stride_of(const DevicePrefill& a) { return a.q_stride == 0 ? std::int64_t{a.q_heads} * a.head_dim : a.q_stride; }

// Without splits.
template <class T>
PrefillArgs<T> prefill_args(const DevicePrefill& a) {
  PrefillArgs<T> args{};
  args.q = static_cast<const T*>(a.q), args.k = static_cast<const T*>(a.k), args.v = static_cast<const T*>(a.v);
  args.out = static_cast<T*>(a.out), args.parts = a.parts, args.log_sum = a.log_sum;
  args.query_first = a.query_first, args.kv_before = a.kv_before, args.page_begin = a.page_begin, args.page = a.page;
  args.q_stride = q_stride_of(a), args.tokens = a.tokens, args.prompts = a.prompts, args.kv_heads = a.kv_heads;
  args.group = a.q_heads / a.kv_heads, args.page_units = a.page_tokens / kPageUnit, args.window = a.window, args.splits = 1;
  args.causal = a.causal, args.scale = a.scale * kLog2E;
  return args;
}

// args_of(zero): the arguments for the type.
template <template <class> class Args, class ArgsOf>
void launch_compiled(const char* op, CudaContext& cuda, const Compiled<Args>& c, ElementType type, dim3 grid, ArgsOf&& args_of) {
  const LaunchShape shape = blocks_of(grid, c.tiles.warps * kWarpSize, c.tiles.shared_bytes());
  if (type == ElementType::kF16)
    launch(op, cuda, shape, c.for_f16, args_of(f16{}));
  else
    launch(op, cuda, shape, c.for_bf16, args_of(bf16{}));
}

}  // namespace kvlab::prefill
