
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/token_walk.cuh"
#include "kernels/merge/nearest_kept/nearest_kept.h"

namespace kvlab {

namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize, kTile = 64;  // kTile: kept tokens in shared memory

// out [kv.total]: 1 / norm of each key; 0 for a norm that is 0 or not finite. A block per chunk of a row.
template <class T, int Lanes, int Spans, bool Wide>
__global__ void __launch_bounds__(kTokenThreads, 2) inverse_norms(DeviceRows kv, float* out, int chunks) {
  using Walk = TokenWalk<T, Lanes, Spans, Wide>;
  const int row = blockIdx.x / chunks;
  const std::int32_t end = kv.len[row], first = static_cast<std::int32_t>(blockIdx.x % chunks) * kTokenChunk;
  if (first >= end) return;
  const TokenPlaces places(kv, row);
  const Walk walk(kv, false);
  const std::int32_t last = min(end, first + kTokenChunk);
  walk.run(first + warp_index() * Walk::kStep, last, kTokenThreads / kWarpSize * Walk::kStep, places,
           [&](std::int32_t token, const float(&x)[Spans][8]) {
             float sum = 0;
#pragma unroll
             for (int s = 0; s < Spans; ++s)
#pragma unroll
               for (int c = 0; c < 8; ++c) sum += x[s][c] * x[s][c];
             sum = sum_of_lanes<Lanes>(sum);
             if (walk.lane == 0 && token < last) out[kv.first[row] + token] = sum > 0 && sum < INFINITY ? 1.0F / sqrtf(sum) : 0.0F;
           });
}

struct Places {
  std::int64_t* slot;
  float* inverse;
};
struct FindPlaces {
  DeviceRows kv;
  const std::int64_t* first;
  const std::int32_t* list;
  const float* inverse;  // [kv.total]
  Places out;
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t at = first[row] + i;
    out.slot[at] = kv.slot(row, list[at]);
    out.inverse[at] = inverse[kv.first[row] + list[at]];
  }
};

struct Nearest {
  DeviceParts rows;
  Places kept, dropped;
  std::int32_t* target;
  float* similarity;
  int blocks;  // per row
};

struct Best {
  float value = -INFINITY;
  std::int32_t place = -1;
};
__device__ __forceinline__ void take(Best& best, float value, std::int32_t place) {
  if (value > best.value || best.place < 0) best = {value, place};
}
// Ties go to the lowest place.
template <int Lanes>
__device__ __forceinline__ Best best_of_lanes(Best mine) {
#pragma unroll
  for (int offset = 1; offset < Lanes; offset *= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, mine.value, offset), __shfl_xor_sync(kAllLanes, mine.place, offset)};
    if (other.place >= 0 && (mine.place < 0 || other.value > mine.value || (other.value == mine.value && other.place < mine.place)))
      mine = other;
  }
  return mine;
}
__device__ __forceinline__ void give(const Nearest& a, std::int64_t at, Best best) {
  const float inverse = a.dropped.inverse[at];
  if (best.place >= 0 && inverse == 0.0F) best = {0.0F, 0};  // cosine 0 with all
  a.target[at] = best.place;
  a.similarity[at] = best.place < 0 ? 0.0F : fminf(fmaxf(best.value * inverse, -1.0F), 1.0F);
}

// [kTile, D] with rows padded by 16 bytes; zeros from n on.
template <class T, int D>
__device__ __forceinline__ void load_tile(T* tile, const T* keys, const std::int64_t* slot, int n) {
  constexpr int kPieces = D / 8;
  for (int i = threadIdx.x; i < kTile * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    cp_async<16>(tile + row * (D + 8) + piece * 8, keys + (row < n ? slot[row] : 0) * D + piece * 8, row < n);
  }
  cp_async_commit();
}

// Rows * 16 dropped keys as operands, with their nearest so far.
template <class T, int D, int Rows>
struct DroppedKeys {
  static constexpr int kSteps = D / 16, kStride = D + 8;
  std::uint32_t x[Rows][kSteps][4];
  Best best[Rows][2];

  // Up to n keys from slot[0] on. All threads call it.
  __device__ __forceinline__ void load(T* tile, const T* keys, const std::int64_t* slot, std::int32_t n) {
    for (int m = 0; m < Rows; ++m) {
      __syncthreads();
      const std::int32_t from = m * kTile;
      load_tile<T, D>(tile, keys, slot + min(from, n - 1), min(kTile, max(0, n - from)));
      cp_async_wait<0>();
      __syncthreads();
#pragma unroll
      for (int other = 0; other < Rows; ++other) {
        if (other != m) continue;  // registers are indexed by constants
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
          ldmatrix_x4(x[other][k], tile + (warp_index() * 16 + lane_index() % 16) * kStride + k * 16 + lane_index() / 16 * 8);
      }
    }
    __syncthreads();
  }

  // z = products with the tile's 8 kept keys from n on.
  __device__ __forceinline__ void multiply(const T* tile, int n, float (&z)[Rows][4]) const {
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
      std::uint32_t y[4];
      ldmatrix_x4(y, tile + (n + lane_index() % 8) * kStride + k * 16 + lane_index() / 8 * 8);
      const std::uint32_t low[2] = {y[0], y[1]}, high[2] = {y[2], y[3]};
#pragma unroll
      for (int m = 0; m < Rows; ++m) {
        mma_16x8x16<T>(z[m], x[m][k], low);
        mma_16x8x16<T>(z[m], x[m][k + 1], high);
      }
    }
  }

  // With a tile of `left` kept keys; place0 and inverse are the first one's.
  __device__ __forceinline__ void meet(const T* tile, std::int32_t place0, std::int32_t left, const float* inverse) {
    for (int n = 0; n < kTile && n < left; n += 8) {
      float z[Rows][4] = {};
      multiply(tile, n, z);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int32_t column = n + lane_index() % 4 * 2 + i;
        if (column >= left) continue;
        const float scale = inverse[column];
#pragma unroll
        for (int m = 0; m < Rows; ++m) {
          take(best[m][0], scale > 0 ? z[m][i] * scale : 0.0F, place0 + column);
          take(best[m][1], scale > 0 ? z[m][2 + i] * scale : 0.0F, place0 + column);
        }
      }
    }
  }
};

// Dropped keys are in registers, two tiles of kept keys in shared memory.
template <class T, int D, int Rows>
__global__ void __launch_bounds__(kThreads) nearest_by_tiles(Nearest a) {
  KVLAB_DYNAMIC_SHARED(T, tiles);
  constexpr int kTileNumbers = kTile * DroppedKeys<T, D, Rows>::kStride;
  const int row = blockIdx.x / a.blocks;
  const std::int32_t num_kept = a.rows.num_kept(row), num_dropped = a.rows.num_dropped(row);
  const std::int32_t block0 = blockIdx.x % a.blocks * kWarps * Rows * 16;
  if (block0 >= num_dropped) return;
  const T* const keys = static_cast<const T*>(a.rows.kv.k);
  const std::int64_t dropped0 = a.rows.dropped_first[row], kept0 = a.rows.kept_first[row];
  DroppedKeys<T, D, Rows> mine;
  mine.load(tiles, keys, a.dropped.slot + dropped0 + block0, num_dropped - block0);
  const int num_tiles = (num_kept + kTile - 1) / kTile;
  if (num_tiles > 0) load_tile<T, D>(tiles, keys, a.kept.slot + kept0, min(kTile, num_kept));
  for (int t = 0; t < num_tiles; ++t) {
    const std::int32_t place0 = t * kTile;
    if (t + 1 < num_tiles) {
      load_tile<T, D>(tiles + (t + 1) % 2 * kTileNumbers, keys, a.kept.slot + kept0 + place0 + kTile,
                      min(kTile, num_kept - place0 - kTile));
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    mine.meet(tiles + t % 2 * kTileNumbers, place0, num_kept - place0, a.kept.inverse + kept0 + place0);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < Rows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Best best = best_of_lanes<4>(mine.best[m][half]);
      const std::int32_t i = block0 + m * kTile + warp_index() * 16 + lane_index() / 4 + half * 8;
      if (lane_index() % 4 == 0 && i < num_dropped) give(a, dropped0 + i, best);
    }
  }
}

// Any type and width: a warp per dropped key, a kept key per lane.
template <class T>
__global__ void __launch_bounds__(kThreads) nearest_by_lanes(Nearest a) {
  const int row = blockIdx.x / a.blocks, d = a.rows.kv.head_dim;
  const std::int32_t i = blockIdx.x % a.blocks * kWarps + warp_index();
  if (i >= a.rows.num_dropped(row)) return;
  const std::int64_t at = a.rows.dropped_first[row] + i, kept0 = a.rows.kept_first[row];
  const T* const keys = static_cast<const T*>(a.rows.kv.k);
  const T* const x = keys + a.dropped.slot[at] * d;
  Best best;
  for (std::int32_t place = lane_index(); place < a.rows.num_kept(row); place += kWarpSize) {
    const float inverse = a.kept.inverse[kept0 + place];
    const T* const y = keys + a.kept.slot[kept0 + place] * d;
    float z = 0;
    for (int c = 0; c < d; ++c) z += load_float(x + c) * load_float(y + c);
    take(best, inverse > 0 ? z * inverse : 0.0F, place);
  }
  best = best_of_lanes<kWarpSize>(best);
  if (lane_index() == 0) give(a, at, best);
}

template <class T>
void run(Nearest a, CudaContext& cuda) {
  const auto start = [&](void (*kernel)(Nearest), int dropped_per_block, std::int64_t shared_bytes) {
    a.blocks = static_cast<int>(ceil_div(a.rows.most_dropped, dropped_per_block));
    launch("nearest_kept", cuda, blocks_of(std::int64_t{a.rows.kv.num_rows} * a.blocks, kThreads, shared_bytes), kernel, a);
  };
  const int d = a.rows.kv.head_dim;
  const bool tensor_cores = cuda.gpu().compute_capability >= (std::is_same_v<T, bf16> ? 80 : 75) && aligned16({a.rows.kv.k});
  const bool fits = d == 64 || d == 128 || (d == 256 && cuda.gpu().shared_bytes_per_block > 68 * 1024);
  if constexpr (sizeof(T) == 2) {
    if (tensor_cores && fits)
      return for_value<64, 128, 256>(d, [&](auto dim) {
        constexpr int kDim = decltype(dim)::value, kRows = kDim <= 128 ? 2 : 1;
        start(nearest_by_tiles<T, kDim, kRows>, kWarps * kRows * 16, 2 * kTile * (kDim + 8) * sizeof(T));
      });
  }
  start(nearest_by_lanes<T>, kWarps, 0);
}

}  // namespace

void run_cuda(const NearestKept& a, CudaContext& cuda) {
  const std::int64_t dropped = a.rows.total_dropped(), kept = a.rows.total_kept();
  if (dropped == 0) return;
  const CudaContext::Frame frame(cuda);
  Nearest nearest{on_device(a.rows, cuda),
                  {cuda.scratch<std::int64_t>(kept), cuda.scratch<float>(kept)},
                  {cuda.scratch<std::int64_t>(dropped), cuda.scratch<float>(dropped)},
                  a.target,
                  a.similarity,
                  0};
  const DeviceParts& rows = nearest.rows;
  float* const inverse = cuda.scratch<float>(rows.kv.total);
  const auto chunks = static_cast<int>(ceil_div(rows.kv.longest, kTokenChunk));
  for_token_lanes("nearest_kept", rows.kv, [&](auto lanes, auto spans, auto wide) {
    for_type(a.rows.kv.type, [&](auto zero) {
      launch("nearest_kept", cuda, blocks_of(std::int64_t{rows.kv.num_rows} * chunks, kTokenThreads),
             inverse_norms<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value>, rows.kv, inverse,
             chunks);
    });
  });
  launch_over_rows("nearest_kept", cuda, rows.kv.num_rows, rows.most_kept,
                   FindPlaces{rows.kv, rows.kept_first, rows.kept, inverse, nearest.kept});
  launch_over_rows("nearest_kept", cuda, rows.kv.num_rows, rows.most_dropped,
                   FindPlaces{rows.kv, rows.dropped_first, rows.dropped, inverse, nearest.dropped});
  for_type(a.rows.kv.type, [&](auto zero) { run<decltype(zero)>(nearest, cuda); });
}

}  // namespace kvlab
