#include <algorithm>

#include "kernels/device/cuda/blas.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

constexpr int kEmbeddingThreads = 128;
constexpr int kInFlight = 4;  // loads of a thread before its first store

// Block (x, y): part x of rows y, y + gridDim.y ...
template <class Piece>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_rows(const std::int32_t* ids, const Piece* table, Piece* out, std::int64_t tokens, std::int64_t pieces) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kEmbeddingThreads * kInFlight + threadIdx.x;
  for (std::int64_t token = blockIdx.y; token < tokens; token += gridDim.y) {
    const Piece* row = table + ids[token] * pieces;
    Piece held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (first + i * kEmbeddingThreads < pieces) held[i] = row[first + i * kEmbeddingThreads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (first + i * kEmbeddingThreads < pieces) out[token * pieces + first + i * kEmbeddingThreads] = held[i];
  }
}

constexpr int kThreads = 256;
constexpr int kVectors = 2;  // per thread: four 16-byte loads in flight

// 0 if e^-x is infinite. Fast exp and division suffice for 16 bits.
template <class T>
__device__ __forceinline__ float silu(float x) {
  if constexpr (sizeof(T) == 2)
    return __fdividef(x, 1.0F + __expf(-x));
  else
    return x / (1.0F + expf(-x));
}

template <class T, bool kGated>
__global__ void __launch_bounds__(kThreads) silu_mul_vectors(SiluMul a) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * kVectors * kThreads + threadIdx.x) * 8;
  for (std::int64_t token = blockIdx.y; token < a.tokens; token += gridDim.y) {
    float gate[kVectors][8], up[kVectors][8];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t i = first + v * (kThreads * 8);
      if (i >= a.width) continue;
      load8(static_cast<const T*>(a.gate) + token * a.in_stride + i, gate[v]);
      if constexpr (kGated) load8(static_cast<const T*>(a.up) + token * a.in_stride + i, up[v]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t i = first + v * (kThreads * 8);
      if (i >= a.width) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[v][j] = kGated ? silu<T>(gate[v][j]) * up[v][j] : silu<T>(gate[v][j]);
      store8(static_cast<T*>(a.out) + token * a.width + i, gate[v]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_any(SiluMul a) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.width) return;
  for (std::int64_t token = blockIdx.y; token < a.tokens; token += gridDim.y) {
    const auto in = [&](const void* x) { return load_float(static_cast<const T*>(x) + token * a.in_stride + i); };
    const float gate = silu<T>(in(a.gate));
    store_float(static_cast<T*>(a.out) + token * a.width + i, a.up != nullptr ? gate * in(a.up) : gate);
  }
}

// A thread has `Each` neighbouring elements.
template <class In, class Out, int Each>
__global__ void __launch_bounds__(kThreads)
    convert_rows(const In* in, Out* out, std::int64_t rows, std::int64_t width, std::int64_t in_stride, std::int64_t out_stride) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * Each;
  const std::int64_t row = at / width, column = at % width;
  if (row >= rows) return;
  const In* const from = in + row * in_stride + column;
  Out* const to = out + row * out_stride + column;
  float x[Each];
  load_numbers(from, x);
  store_numbers(to, x);
}

struct Scatter {
  std::int32_t* to;
  const std::int64_t* place;
  const std::int32_t* value;
  std::int64_t total;
  __device__ std::int64_t count(int) const { return total; }
  __device__ void operator()(int, std::int64_t i) const { to[place[i]] = value[i]; }
};

}  // namespace

void run_cuda(const Linear& a, CudaContext& cuda) {
  MatrixProduct p{a.x, a.w, a.y, a.bias, a.tokens, a.out_dim, a.in_dim};
  p.type = a.type, p.c_is_f32 = a.y_is_f32;
  multiply(p, cuda);
}

void run_cuda(const DeviceProject& a, CudaContext& cuda) {
  MatrixProduct p{a.x, a.r, a.y, nullptr, a.tokens, a.rank, a.dim};
  p.b_transposed = false;
  p.batch = a.rows, p.a_step = a.x_step, p.b_step = a.r_step, p.c_step = a.y_step;
  p.type = a.type;
  multiply(p, cuda);
}

void run_cuda(const Embedding& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.width == 0) return;
  for_piece(a.width * element_bytes(a.type), {a.table, a.out}, [&](auto piece) {
    using Piece = decltype(piece);
    const std::int64_t pieces = a.width * element_bytes(a.type) / std::int64_t{sizeof(Piece)};
    const dim3 grid = grid_of(ceil_div(pieces, kEmbeddingThreads * kInFlight), std::min(a.tokens, kMostGridY));
    launch("embedding_rows", cuda, blocks_of(grid, kEmbeddingThreads), embedding_rows<Piece>, a.ids, static_cast<const Piece*>(a.table),
           static_cast<Piece*>(a.out), a.tokens, pieces);
  });
}

void run_cuda(const SiluMul& given, CudaContext& cuda) {
  SiluMul a = given;
  if (a.tokens == 0 || a.width == 0) return;
  if (a.in_stride == 0 || a.in_stride == a.width) a.width = a.in_stride = a.tokens * a.width, a.tokens = 1;  // one long row
  const bool vectors = a.width % 8 == 0 && a.in_stride % 8 == 0 && aligned16({a.gate, a.up, a.out});
  const dim3 grid = grid_of(ceil_div(a.width, vectors ? kThreads * kVectors * 8 : kThreads), std::min(a.tokens, kMostGridY));
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = !vectors ? silu_mul_any<T> : a.up != nullptr ? silu_mul_vectors<T, true> : silu_mul_vectors<T, false>;
    launch(vectors ? "silu_mul_vectors" : "silu_mul_any", cuda, blocks_of(grid, kThreads), kernel, a);
  });
}

void run_cuda(const DeviceConvert& given, CudaContext& cuda) {
  DeviceConvert a = given;
  if (a.rows == 0 || a.width == 0) return;
  if (a.in_stride == 0) a.in_stride = a.width;
  if (a.out_stride == 0) a.out_stride = a.width;
  const bool wide = a.width % 8 == 0 && a.in_stride % 8 == 0 && a.out_stride % 8 == 0 && aligned16({a.in, a.out});
  const LaunchShape blocks = blocks_of(ceil_div(ceil_div(a.rows * a.width, wide ? 8 : 1), kThreads), kThreads);
  for_type(a.in_type, [&](auto in) {
    for_type(a.out_type, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch("convert_rows", cuda, blocks, wide ? convert_rows<In, Out, 8> : convert_rows<In, Out, 1>, static_cast<const In*>(a.in),
             static_cast<Out*>(a.out), a.rows, a.width, a.in_stride, a.out_stride);
    });
  });
}

void run_cuda(const DeviceScatter& a, CudaContext& cuda) {
  if (a.count == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [place, value] = upload_all(cuda, host_array(a.place, a.count), host_array(a.value, a.count));
  launch_over_rows("scatter", cuda, 1, a.count, Scatter{a.to, place, value, a.count});
}

}  // namespace kvlab
