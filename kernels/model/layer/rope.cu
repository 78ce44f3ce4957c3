#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 2;  // per thread, with the same cosines and sines

template <int N>
__device__ __forceinline__ void rotation(const Rope& a, std::int64_t token, int channel, float (&cos)[N], float (&sin)[N]) {
  const auto line = [&](const float* table, std::int64_t at, float(&x)[N]) { load_numbers(table + at * (a.head_dim / 2) + channel, x); };
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
  for (int i = 0; i < N; ++i) sin[i] *= a.inverse ? -1.0F : 1.0F;
}

// N channels and their partners in kHeads heads.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_heads(Rope a, int tokens_per_block) {
  const int heads = static_cast<int>(a.heads), half = static_cast<int>(a.head_dim / 2);
  const int parts = half / N, groups = (heads + kHeads - 1) / kHeads, items = groups * parts;
  for (int item = threadIdx.x; item < items * tokens_per_block; item += kThreads) {
    const std::int64_t token = std::int64_t{blockIdx.x} * tokens_per_block + item / items;
    if (token >= a.tokens) break;
    const int first_head = item % items / parts, channel = item % parts * N;
    float low[kHeads][N], high[kHeads][N], cos[N], sin[N];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * groups;
      if (head >= heads) continue;
      const T* p = static_cast<const T*>(a.in) + token * a.in_stride + std::int64_t{head} * 2 * half + channel;
      load_numbers(p, low[h]);
      load_numbers(p + half, high[h]);
    }
    rotation(a, token, channel, cos, sin);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * groups;
      if (head >= heads) continue;
      T* p = static_cast<T*>(a.out) + token * a.out_stride + std::int64_t{head} * 2 * half + channel;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = low[h][i], y = high[h][i];
        low[h][i] = x * cos[i] - y * sin[i];
        high[h][i] = y * cos[i] + x * sin[i];
      }
      store_numbers(p, low[h]);
      store_numbers(p + half, high[h]);
    }
  }
}

}  // namespace

void run_cuda(const Rope& given, CudaContext& cuda) {
  Rope a = given;
  if (a.tokens == 0 || a.heads == 0 || a.head_dim == 0) return;
  if (a.head_dim % 2 != 0) throw CudaError("RoPE turns pairs of channels: head_dim " + std::to_string(a.head_dim) + " is odd");
  if (a.in_stride == 0) a.in_stride = a.heads * a.head_dim;
  if (a.out_stride == 0) a.out_stride = a.heads * a.head_dim;
  const bool vectors = a.head_dim % 16 == 0 && a.in_stride % 8 == 0 && a.out_stride % 8 == 0 && aligned16({a.in, a.out, a.cos, a.sin});
  const std::int64_t items = ceil_div(a.heads, kHeads) * (a.head_dim / 2 / (vectors ? 8 : 1));
  const std::int64_t per_block = items < kThreads ? kThreads / items : 1;
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    launch("rope_heads", cuda, blocks_of(ceil_div(a.tokens, per_block), kThreads), vectors ? rope_heads<T, 8> : rope_heads<T, 1>, a,
           static_cast<int>(per_block));
  });
}

}  // namespace kvlab
