#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/vectors.cuh"
#include "kernels/model/rope/rope_cuda.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 2;  // per thread, with the same cosines and sines

template <class T>
struct RopeArgs {
  const T* in;
  T* out;
  const float *cos, *sin;
  const std::int32_t *position, *from_position;
  std::int64_t tokens, in_stride, out_stride;
  int heads, half;
  float sign;  // -1: the inverse
  int tokens_per_block;
};

template <int N, class T>
__device__ __forceinline__ void rotation(const RopeArgs<T>& a, std::int64_t token, int channel, float (&cos)[N], float (&sin)[N]) {
  const auto line = [&](const float* table, std::int64_t at, float(&x)[N]) {
    if constexpr (N == 8)
      load8(table + at * a.half + channel, x);
    else
      x[0] = table[at * a.half + channel];
  };
  const std::int64_t to = a.position != nullptr ? a.position[token] : token;
  line(a.cos, to, cos);
  line(a.sin, to, sin);
  if (a.from_position != nullptr) {
    float c[N], s[N];
    line(a.cos, a.from_position[token], c);
    line(a.sin, a.from_position[token], s);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = cos[i] * c[i] + sin[i] * s[i];
      sin[i] = sin[i] * c[i] - cos[i] * s[i];
      cos[i] = x;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sin[i] *= a.sign;
}

// N channels and their partners in kHeads heads. N = 8: 16-byte accesses; 1: any head size.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_heads(RopeArgs<T> a) {
  const int parts = a.half / N, groups = (a.heads + kHeads - 1) / kHeads, items = groups * parts;
  for (int item = threadIdx.x; item < items * a.tokens_per_block; item += kThreads) {
    const std::int64_t token = std::int64_t{blockIdx.x} * a.tokens_per_block + item / items;
    if (token >= a.tokens) break;
    const int first_head = item % items / parts, channel = item % parts * N;
    float low[kHeads][N], high[kHeads][N], cos[N], sin[N];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * groups;
      if (head >= a.heads) continue;
      const T* p = a.in + token * a.in_stride + std::int64_t{head} * 2 * a.half + channel;
      if constexpr (N == 8) {
        load8(p, low[h]);
        load8(p + a.half, high[h]);
      } else {
        low[h][0] = to_float(p[0]), high[h][0] = to_float(p[a.half]);
      }
    }
    rotation(a, token, channel, cos, sin);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * groups;
      if (head >= a.heads) continue;
      T* p = a.out + token * a.out_stride + std::int64_t{head} * 2 * a.half + channel;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = low[h][i], y = high[h][i];
        low[h][i] = x * cos[i] - y * sin[i];
        high[h][i] = y * cos[i] + x * sin[i];
      }
      if constexpr (N == 8) {
        store8(p, low[h]);
        store8(p + a.half, high[h]);
      } else {
        p[0] = from_float<T>(low[h][0]), p[a.half] = from_float<T>(high[h][0]);
      }
    }
  }
}

}  // namespace

void run_cuda(const DeviceRope& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.heads == 0 || a.head_dim == 0) return;
  if (a.head_dim % 2 != 0) throw CudaError("RoPE turns pairs of channels: head_dim " + std::to_string(a.head_dim) + " is odd");
  const std::int64_t in_stride = a.in_stride != 0 ? a.in_stride : a.heads * a.head_dim;
  const std::int64_t out_stride = a.out_stride != 0 ? a.out_stride : a.heads * a.head_dim;
  const bool vectors = a.head_dim % 16 == 0 && in_stride % 8 == 0 && out_stride % 8 == 0 && aligned16({a.in, a.out, a.cos, a.sin});
  const auto half = static_cast<int>(a.head_dim / 2);
  const std::int64_t items = ceil_div(a.heads, kHeads) * (vectors ? half / 8 : half);
  const std::int64_t per_block = items < kThreads ? kThreads / items : 1;
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const RopeArgs<T> args{static_cast<const T*>(a.in),
                           static_cast<T*>(a.out),
                           a.cos,
                           a.sin,
                           a.position,
                           a.from_position,
                           a.tokens,
                           in_stride,
                           out_stride,
                           static_cast<int>(a.heads),
                           half,
                           a.inverse ? -1.0F : 1.0F,
                           static_cast<int>(per_block)};
    const LaunchShape blocks{dim3(static_cast<unsigned>(ceil_div(a.tokens, per_block))), dim3(kThreads)};
    launch("rope_heads", cuda, blocks, vectors ? rope_heads<T, 8> : rope_heads<T, 1>, args);
  });
}

}  // namespace kvlab
