#include <algorithm>

#include "kernels/attention/query_moments/query_moments.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/tile_product.cuh"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kChunk = 512;  // queries per fp32 sum; doubles over chunks

struct Moments {
  const Queries* queries;
  const std::int32_t* future_begin;
  std::int32_t sequences, heads, d, skip, num_future, chunks;
  const float* frequencies;        // [sequences, d / 2]; null: no rotation
  double magnitude, divisor_less;  // covariance over n - divisor_less
  float* partial_mean;             // [sequences, chunks, heads * d]
  double* raw_mean;                // [sequences, heads * d]
  double* rotation;                // [sequences, d / 2, 2] mean cosine, sine
  float* partial;                  // [sequences * heads, chunks, d, d]
  float *mean, *covariance;

  __device__ std::int32_t counted(int s) const { return max(0, queries[s].count - skip); }
  __device__ std::int64_t width() const { return std::int64_t{heads} * d; }
};

__global__ void __launch_bounds__(kThreads) add_queries(Moments a) {
  const int s = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks;
  const std::int64_t i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= a.width()) return;
  const int last = min(a.counted(s), (chunk + 1) * kChunk);
  float sum = 0;
#pragma unroll 8
  for (int t = chunk * kChunk; t < last; ++t) sum += a.queries[s].data[(a.skip + t) * a.width() + i];
  a.partial_mean[std::int64_t{blockIdx.x} * a.width() + i] = sum;
}

struct RawMean : Moments {
  __device__ std::int64_t count(int) const { return width(); }
  __device__ void operator()(int s, std::int64_t i) const {
    double sum = 0;
    for (int c = 0; c < chunks; ++c) sum += static_cast<double>(partial_mean[(std::int64_t{s} * chunks + c) * width() + i]);
    raw_mean[s * width() + i] = counted(s) > 0 ? sum / counted(s) : 0;
  }
};

struct Rotate : Moments {
  __device__ std::int64_t count(int) const { return d / 2; }
  __device__ void operator()(int s, std::int64_t i) const {
    double cosine = 1, sine = 0;
    if (frequencies != nullptr) {
      const float frequency = frequencies[std::int64_t{s} * (d / 2) + i];
      cosine = 0;
      for (int p = 0; p < num_future; ++p) {
        const float angle = static_cast<float>(future_begin[s] + p) * frequency;
        cosine += static_cast<double>(cosf(angle)), sine += static_cast<double>(sinf(angle));
      }
      cosine = cosine / num_future * magnitude, sine = sine / num_future * magnitude;
    }
    rotation[(std::int64_t{s} * (d / 2) + i) * 2] = cosine, rotation[(std::int64_t{s} * (d / 2) + i) * 2 + 1] = sine;
  }
};

// For the channel and its partner.
struct Line {
  std::int32_t other;
  double own, mixed;
};
__device__ __forceinline__ Line line_of(const Moments& a, int s, std::int32_t i) {
  const std::int32_t half = a.d / 2;
  if (i >= 2 * half) return {i, 1, 0};
  const double* const r = a.rotation + (std::int64_t{s} * half + i % half) * 2;
  return i < half ? Line{i + half, r[0], -r[1]} : Line{i - half, r[0], r[1]};
}

struct MeanOut : Moments {
  __device__ std::int64_t count(int) const { return width(); }
  __device__ void operator()(int s, std::int64_t i) const {
    const auto c = static_cast<std::int32_t>(i % d);
    const double* const x = raw_mean + s * width() + i - c;
    const Line line = line_of(*this, s, c);
    mean[s * width() + i] = static_cast<float>(line.own * x[c] + line.mixed * x[line.other]);
  }
};

// A tile of a head's covariance over a chunk.
__global__ void __launch_bounds__(kTileThreads, 2) add_squares(Moments a) {
  KVLAB_SHARED(float4, shared, kTileFloats / 4);
  const int tiles = (a.d + kTileSide - 1) / kTileSide, i0 = blockIdx.y / tiles * kTileSide, j0 = blockIdx.y % tiles * kTileSide;
  const int chunk = blockIdx.x % a.chunks, of_head = blockIdx.x / a.chunks, s = of_head / a.heads, head = of_head % a.heads;
  const int first = chunk * kChunk, n = min(a.counted(s) - first, kChunk);
  const float* const q = a.queries[s].data + (a.skip + first) * a.width() + std::int64_t{head} * a.d;
  const double* const mean = a.raw_mean + s * a.width() + std::int64_t{head} * a.d;
  const auto centred = [&](int c, int t) { return c < a.d ? q[t * a.width() + c] - static_cast<float>(mean[c]) : 0.0F; };
  float z[4][4] = {};
  add_tile_product<true>(
      z, n, shared, [&](int i, int t) { return centred(i0 + i, t); }, [&](int j, int t) { return centred(j0 + j, t); });
  const int row0 = i0 + static_cast<int>(threadIdx.x) / 16 * 4, column0 = j0 + static_cast<int>(threadIdx.x) % 16 * 4;
  float* const out = a.partial + std::int64_t{blockIdx.x} * a.d * a.d;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (row0 + i < a.d && column0 + j < a.d) out[std::int64_t{row0 + i} * a.d + column0 + j] = z[i][j];
}

struct CovarianceOut : Moments {
  __device__ std::int64_t count(int) const { return std::int64_t{d} * d; }
  __device__ double raw(std::int64_t of_head, std::int32_t i, std::int32_t j) const {
    double sum = 0;
    for (int c = 0; c < chunks; ++c) sum += static_cast<double>(partial[((of_head * chunks + c) * d + i) * d + j]);
    return sum;
  }
  __device__ void operator()(int of_head, std::int64_t at) const {
    const int s = of_head / heads;
    const auto i = static_cast<std::int32_t>(at / d), j = static_cast<std::int32_t>(at % d);
    const Line x = line_of(*this, s, i), y = line_of(*this, s, j);
    double sum = x.own * y.own * raw(of_head, i, j);
    if (x.mixed != 0) sum += x.mixed * y.own * raw(of_head, x.other, j);
    if (y.mixed != 0) sum += x.own * y.mixed * raw(of_head, i, y.other);
    if (x.mixed != 0 && y.mixed != 0) sum += x.mixed * y.mixed * raw(of_head, x.other, y.other);
    covariance[of_head * count(0) + at] = static_cast<float>(sum / fmax(1.0, counted(s) - divisor_less));
  }
};

}  // namespace

void run_cuda(const QueryMoments& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  std::int32_t most = 1;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) most = std::max(most, a.queries[s].count - a.skip_tokens);
  const auto chunks = static_cast<std::int32_t>(ceil_div(most, kChunk));
  const std::int64_t width = std::int64_t{a.q_heads} * a.head_dim, all_heads = std::int64_t{a.num_sequences} * a.q_heads;
  const std::int64_t square = std::int64_t{a.head_dim} * a.head_dim, lines = std::int64_t{a.num_sequences} * chunks;
  const auto [queries, future, frequencies] =
      upload_all(cuda, host_array(a.queries, a.num_sequences), host_array(a.future_begin, a.num_sequences),
                 host_array(a.frequencies, std::int64_t{a.num_sequences} * (a.head_dim / 2)));
  const Moments moments{queries,
                        future,
                        a.num_sequences,
                        a.q_heads,
                        a.head_dim,
                        a.skip_tokens,
                        a.num_future,
                        chunks,
                        frequencies,
                        double{a.magnitude},
                        a.unbiased ? 1.0 : 0.0,
                        cuda.scratch<float>(lines * width),
                        cuda.scratch<double>(a.num_sequences * width),
                        cuda.scratch<double>(std::int64_t{a.num_sequences} * a.head_dim),
                        cuda.scratch<float>(a.wants_covariance ? all_heads * chunks * square : 0),
                        a.mean,
                        a.covariance};
  const char* const name = "query_moments";
  launch(name, cuda, blocks_of(grid_of(lines, ceil_div(width, kThreads)), kThreads), add_queries, moments);
  launch_over_rows(name, cuda, a.num_sequences, width, RawMean{moments});
  launch_over_rows(name, cuda, a.num_sequences, a.head_dim / 2, Rotate{moments});
  launch_over_rows(name, cuda, a.num_sequences, width, MeanOut{moments});
  if (!a.wants_covariance) return;
  const std::int64_t tiles = ceil_div(a.head_dim, kTileSide);
  launch(name, cuda, blocks_of(grid_of(all_heads * chunks, tiles * tiles), kTileThreads), add_squares, moments);
  launch_over_rows(name, cuda, all_heads, square, CovarianceOut{moments});
}

}  // namespace kvlab
