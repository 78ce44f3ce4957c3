#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/storage/compact/compact_cuda.h"

namespace kvlab {

namespace {

constexpr int kWarps = 4;
constexpr int kInFlight = 4;  // pieces of K, and as many of V, that a lane loads at once

// A lane moves a token's position and statistics, then all move vectors by pieces.
template <class Piece>
__global__ void __launch_bounds__(kWarps* kWarpSize) gather_tokens(DeviceGather a, int pieces, int tiles) {
  const int row = blockIdx.x / tiles, begin = (blockIdx.x % tiles * kWarps + warp_index()) * kWarpSize, mine = begin + lane_index();
  const std::int64_t first = a.index_first[row];
  const auto kept = static_cast<int>(a.index_first[row + 1] - first);
  if (begin >= kept) return;
  const int n = min(kWarpSize, kept - begin);
  std::int64_t from = 0, to = 0;
  if (mine < kept) {
    from = a.from.slot(row, a.index[first + mine]), to = a.to.slot(row, mine);
    if (a.from.position != nullptr) a.to.position[to] = a.from.position[from];
    for (int w = 0; w < a.from.num_words; ++w) a.to.words[w * a.to.pool_tokens + to] = a.from.words[w * a.from.pool_tokens + from];
  }
  const auto *const from_k = static_cast<const Piece*>(a.from.k), *const from_v = static_cast<const Piece*>(a.from.v);
  auto *const to_k = static_cast<Piece*>(a.to.k), *const to_v = static_cast<Piece*>(a.to.v);
  TileWalk walk(1, pieces);
  for (int step = 0; step < pieces && step * kWarpSize < n * pieces; step += kInFlight) {
    Piece k[kInFlight], v[kInFlight];
    std::int64_t target[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t source = __shfl_sync(kAllLanes, from, walk.token & 31) * pieces + walk.part;
      target[u] = __shfl_sync(kAllLanes, to, walk.token & 31) * pieces + walk.part;
      if (step + u >= pieces || walk.token >= n) target[u] = -1;
      if (target[u] >= 0) k[u] = from_k[source], v[u] = from_v[source];
      walk.next();
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (target[u] >= 0) to_k[target[u]] = k[u], to_v[target[u]] = v[u];
  }
}

}  // namespace

void run_cuda(const DeviceGather& a, CudaContext& cuda) {
  if (a.kept == 0) return;
  const std::int64_t vector_bytes = a.from.head_dim * element_bytes(a.type), tiles = ceil_div(a.longest, kWarps * kWarpSize);
  for_piece(vector_bytes, {a.from.k, a.from.v, a.to.k, a.to.v}, [&](auto piece) {
    launch("gather_tokens", cuda, blocks_of(a.from.num_rows * tiles, kWarps * kWarpSize), gather_tokens<decltype(piece)>, a,
           static_cast<int>(vector_bytes / std::int64_t{sizeof piece}), static_cast<int>(tiles));
  });
}

}  // namespace kvlab
