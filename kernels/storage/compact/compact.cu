
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/storage/compact/compact.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = 4;
constexpr int kInFlight = 4;                       // pieces per thread between barriers, or of K and as many of V
constexpr int kMostTokens = kThreads * kInFlight;  // per chunk

struct CompactArgs {
  DeviceRows rows;
  const std::int64_t* index_first;
  const std::int32_t* index;
  std::int32_t pieces, slices;  // per vector; blocks per vector
};

// In place: a block moves its share of a row, chunk by chunk. A chunk's targets are before later sources.
template <class Piece>
__global__ void __launch_bounds__(kThreads) compact_vectors(CompactArgs a) {
  KVLAB_SHARED(std::int64_t, from, kMostTokens);
  KVLAB_SHARED(std::int64_t, to, kMostTokens);
  const int slice = blockIdx.x % a.slices, row = blockIdx.x / a.slices / 2, width = a.pieces / a.slices;
  auto* const data = static_cast<Piece*>(blockIdx.x / a.slices % 2 == 0 ? a.rows.k : a.rows.v) + slice * width;
  const std::int64_t first = a.index_first[row];
  const auto kept = static_cast<int>(a.index_first[row + 1] - first);
  const int chunk = kMostTokens / width;
  for (int begin = 0; begin < kept; begin += chunk) {
    const int n = min(chunk, kept - begin);
    for (int t = threadIdx.x; t < n; t += kThreads) {
      const int source = a.index[first + begin + t];
      to[t] = source == begin + t ? -1 : a.rows.slot(row, begin + t) * a.pieces;
      from[t] = a.rows.slot(row, source) * a.pieces;
    }
    __syncthreads();
    Piece x[kInFlight];
    std::int64_t target[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int item = threadIdx.x + u * kThreads, t = item / width, piece = item % width;
      target[u] = t < n ? to[t] : -1;
      if (target[u] < 0) continue;
      x[u] = data[from[t] + piece];
      target[u] += piece;
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (target[u] >= 0) data[target[u]] = x[u];
  }
}

// Block (row, c): positions (c = 0) or statistic c - 1.
__global__ void __launch_bounds__(kThreads) compact_words(CompactArgs a) {
  const int channels = a.rows.num_words + 1, row = blockIdx.x / channels, channel = blockIdx.x % channels;
  auto* const data = channel == 0 ? reinterpret_cast<std::uint32_t*>(a.rows.position) : a.rows.words + (channel - 1) * a.rows.pool_tokens;
  const std::int64_t first = a.index_first[row];
  const auto kept = static_cast<int>(a.index_first[row + 1] - first);
  if (data == nullptr) return;
  for (int begin = 0; begin < kept; begin += kThreads * kInFlight) {
    std::uint32_t x[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int i = begin + u * kThreads + static_cast<int>(threadIdx.x);
      if (i < kept) x[u] = data[a.rows.slot(row, a.index[first + i])];
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int i = begin + u * kThreads + static_cast<int>(threadIdx.x);
      if (i < kept) data[a.rows.slot(row, i)] = x[u];
    }
  }
}

// At least two blocks per multiprocessor, of at least 32 bytes (a sector).
template <class Piece>
void compact(CompactArgs a, std::int64_t vector_bytes, CudaContext& cuda) {
  a.pieces = static_cast<std::int32_t>(vector_bytes / static_cast<std::int64_t>(sizeof(Piece)));
  a.slices = 1;
  while (a.rows.num_rows * 2 * a.slices < 2 * cuda.gpu().multiprocessors && a.pieces % (2 * a.slices) == 0 &&
         vector_bytes / (2 * a.slices) >= 32)
    a.slices *= 2;
  if (a.pieces / a.slices > kMostTokens)
    throw CudaError("compacting vectors of " + std::to_string(vector_bytes) + " bytes; beyond " + std::to_string(2 * kMostTokens) +
                    " they must be multiples of 16");
  launch("compact_vectors", cuda, blocks_of(a.rows.num_rows * 2 * a.slices, kThreads), compact_vectors<Piece>, a);
}

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

void run_cuda(const CompactRows& op, CudaContext& cuda) {
  const KvRows& kv = op.kv;
  if (kv.num_rows == 0 || op.index_first[kv.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  const CompactArgs a{on_device(kv, cuda), cuda.upload(op.index_first, kv.num_rows + 1), op.index, 1, 1};
  const std::int64_t vector_bytes = kv.head_dim * element_bytes(kv.type);
  for_piece(vector_bytes, {kv.k, kv.v}, [&](auto piece) { compact<decltype(piece)>(a, vector_bytes, cuda); });
  launch("compact_words", cuda, blocks_of(kv.num_rows * (kv.num_words + 1), kThreads), compact_words, a);
}

void run_cuda(const DeviceGather& a, CudaContext& cuda) {
  if (a.kept == 0) return;
  const std::int64_t vector_bytes = a.from.head_dim * element_bytes(a.type), tiles = ceil_div(a.longest, kWarps * kWarpSize);
  for_piece(vector_bytes, {a.from.k, a.from.v, a.to.k, a.to.v}, [&](auto piece) {
    launch("gather_tokens", cuda, blocks_of(a.from.num_rows * tiles, kWarps * kWarpSize), gather_tokens<decltype(piece)>, a,
           static_cast<int>(vector_bytes / std::int64_t{sizeof piece}), static_cast<int>(tiles));
  });
}

}  // namespace kvlab
