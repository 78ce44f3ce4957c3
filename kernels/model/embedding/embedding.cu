#include <algorithm>

#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/vectors.cuh"
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

template <class Piece>
void copy_rows(const DeviceEmbedding& a, CudaContext& cuda) {
  const std::int64_t pieces = a.width * element_bytes(a.type) / static_cast<std::int64_t>(sizeof(Piece));
  const dim3 grid(static_cast<unsigned>(ceil_div(pieces, kThreads * kInFlight)), static_cast<unsigned>(std::min(a.tokens, kMostGridY)));
  launch("embedding_rows", cuda, {grid, dim3(kThreads)}, embedding_rows<Piece>, a.ids, static_cast<const Piece*>(a.table),
         static_cast<Piece*>(a.out), a.tokens, pieces);
}

}  // namespace

void run_cuda(const DeviceEmbedding& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.width == 0) return;
  if (a.width * element_bytes(a.type) % 16 == 0 && aligned16({a.table, a.out}))
    copy_rows<uint4>(a, cuda);
  else
    copy_rows<std::uint16_t>(a, cuda);
}

}  // namespace kvlab
