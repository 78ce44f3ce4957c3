#include <algorithm>

#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/embedding/embedding_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 128;
constexpr int kInFlight = 4;  // loads of a thread before its first store

// Block (x, y): part x of rows y, y + gridDim.y ...
template <class Piece>
__global__ void __launch_bounds__(kThreads)
    embedding_rows(const std::int32_t* ids, const Piece* table, Piece* out, std::int64_t tokens, std::int64_t pieces) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads * kInFlight + threadIdx.x;
  for (std::int64_t token = blockIdx.y; token < tokens; token += gridDim.y) {
    const Piece* row = table + ids[token] * pieces;
    Piece held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (first + i * kThreads < pieces) held[i] = row[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (first + i * kThreads < pieces) out[token * pieces + first + i * kThreads] = held[i];
  }
}

}  // namespace

void run_cuda(const DeviceEmbedding& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.width == 0) return;
  for_piece(a.width * element_bytes(a.type), {a.table, a.out}, [&](auto piece) {
    using Piece = decltype(piece);
    const std::int64_t pieces = a.width * element_bytes(a.type) / std::int64_t{sizeof(Piece)};
    const dim3 grid = grid_of(ceil_div(pieces, kThreads * kInFlight), std::min(a.tokens, kMostGridY));
    launch("embedding_rows", cuda, blocks_of(grid, kThreads), embedding_rows<Piece>, a.ids, static_cast<const Piece*>(a.table),
           static_cast<Piece*>(a.out), a.tokens, pieces);
  });
}

}  // namespace kvlab
