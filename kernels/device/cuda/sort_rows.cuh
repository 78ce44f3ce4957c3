#pragma once

#include "kernels/device/cuda/launch.cuh"

namespace kvlab {

// Bitonic sort (Batcher 1968), descending, of rows of `width` keys, a power of two.
constexpr int kSortThreads = 512, kSortBytes = 32 * 1024;

template <class Key>
constexpr int kSortTile = kSortBytes / static_cast<int>(sizeof(Key));

template <class Key>
__device__ __forceinline__ void order_pair(Key& a, Key& b, bool descending) {
  if (descending ? !(a < b) : !(b < a)) return;
  const Key c = a;
  a = b, b = c;
}

// Inside tiles.
template <class Key>
__global__ void __launch_bounds__(kSortThreads)
    sort_tiles(Key* keys, int tile, std::int64_t width, std::int64_t run_begin, std::int64_t run_end) {
  KVLAB_DYNAMIC_SHARED(Key, shared);
  Key* const mine = keys + std::int64_t{blockIdx.x} * tile;
  const std::int64_t at = std::int64_t{blockIdx.x} * tile % width;  // in its row
  for (int i = threadIdx.x; i < tile; i += kSortThreads) shared[i] = mine[i];
  __syncthreads();
  for (std::int64_t run = run_begin; run <= run_end; run *= 2) {
    for (int distance = static_cast<int>(min(run, std::int64_t{tile}) / 2); distance > 0; distance /= 2) {
      for (int pair = threadIdx.x; pair < tile / 2; pair += kSortThreads) {
        const int i = pair / distance * 2 * distance + pair % distance;
        order_pair(shared[i], shared[i + distance], ((at + i) & run) == 0);
      }
      __syncthreads();
    }
  }
  for (int i = threadIdx.x; i < tile; i += kSortThreads) mine[i] = shared[i];
}

// Over at least a tile.
template <class Key>
__global__ void __launch_bounds__(kSortThreads)
    sort_step(Key* keys, std::int64_t pairs, std::int64_t width, std::int64_t run, std::int64_t distance) {
  const std::int64_t pair = std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (pair >= pairs) return;
  const std::int64_t i = pair / distance * 2 * distance + pair % distance;
  order_pair(keys[i], keys[i + distance], (i % width & run) == 0);
}

// keys [rows, width].
template <class Key>
void sort_rows(const char* name, CudaContext& cuda, Key* keys, std::int64_t rows, std::int64_t width) {
  if (rows == 0 || width < 2) return;
  const auto tile = static_cast<int>(width < kSortTile<Key> ? width : kSortTile<Key>);
  const LaunchShape tiles = blocks_of(rows * width / tile, kSortThreads, static_cast<std::size_t>(tile) * sizeof(Key));
  launch(name, cuda, tiles, sort_tiles<Key>, keys, tile, width, std::int64_t{2}, std::int64_t{tile});
  const std::int64_t pairs = rows * width / 2;
  const LaunchShape steps = blocks_of(ceil_div(pairs, kSortThreads), kSortThreads);
  for (std::int64_t run = 2LL * tile; run <= width; run *= 2) {
    for (std::int64_t distance = run / 2; distance >= tile; distance /= 2)
      launch(name, cuda, steps, sort_step<Key>, keys, pairs, width, run, distance);
    launch(name, cuda, tiles, sort_tiles<Key>, keys, tile, width, run, run);
  }
}

// The least power of two >= max(n, 2).
constexpr std::int64_t sort_width(std::int64_t n) {
  std::int64_t width = 2;
  while (width < n) width *= 2;
  return width;
}

}  // namespace kvlab
