#include <algorithm>
#include <limits>

#include "kernels/device/cuda/launch.cuh"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 2;               // vectors loaded ahead
constexpr std::int64_t kLeastPart = 8192;  // logits worth a block

using Best = unsigned long long;  // ordered sum, then ~token: larger is better

struct Leader {
  float sum = -INFINITY;
  unsigned token = 0;
  __device__ __forceinline__ void see(float x, unsigned at) {
    if (x > sum) sum = x, token = at;
  }
};

// N logits from token `at` on. Noise is computed only if the sum can reach the block's best: w < exp(z / T - best), because -log(1 - w) >=
// w. Ties and NaN pass.
template <int N>
__device__ __forceinline__ void draw(const float (&z)[N], unsigned at, float inverse, std::uint64_t key, volatile unsigned* shared_best,
                                     Leader& leader) {
  constexpr float kLog2E = 1.44269504F, kMargin = 1.0F + 1e-4F, kRounding = 0x1p-21F, kLargest = 3e38F;
  const float best = float_of_key(*shared_best), lower = fminf(best * (1.0F - kRounding), best * (1.0F + kRounding));
  const float bound = fminf(lower * kLog2E, kLargest);
  unsigned bits[N], candidates = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    bits[i] = sampling_bits(key, at + i);
    const float w = __uint_as_float(0x3F800000U | bits[i] >> 9);  // 1 + w, rounded down
    if (!(w > 1.0F + kMargin * fast_exp2(__fmul_rn(z[i], inverse) * kLog2E - bound))) candidates |= 1U << i;
  }
  if (candidates == 0) return;
  const float before = leader.sum;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if ((candidates >> i & 1U) != 0) leader.see(__fmul_rn(z[i], inverse) + gumbel_noise(bits[i]), at + i);
  if (leader.sum > before) atomicMax(const_cast<unsigned*>(shared_best), ordered_key(leader.sum));
}

// `partial` [rows, parts] if several blocks share a row, `part` logits each.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) sample_rows(Sampling a, Best* partial, std::int64_t part) {
  KVLAB_SHARED(unsigned, shared_best, 1);
  KVLAB_SHARED(Best, shared, 33);
  const std::int64_t row = blockIdx.x, begin = blockIdx.y * part, end = min(begin + part, a.vocabulary);
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  const float temperature = a.temperature != nullptr ? a.temperature[row] : 0.0F;
  const bool greedy = !(temperature > 0.0F);
  const float inverse = 1.0F / temperature;
  const std::uint64_t key = greedy ? 0 : a.key[row];
  if (threadIdx.x == 0) *shared_best = ordered_key(-INFINITY);
  __syncthreads();
  Leader leader;
  for (std::int64_t first = begin + threadIdx.x * N; first < end; first += kInFlight * kThreads * N) {
    float z[kInFlight][N];
#pragma unroll
    for (int v = 0; v < kInFlight; ++v)
      if (first + v * kThreads * N < end) load_numbers(logits + first + v * kThreads * N, z[v]);
#pragma unroll
    for (int v = 0; v < kInFlight; ++v) {
      const std::int64_t at = first + v * kThreads * N;
      if (at >= end) continue;
      if (greedy) {
#pragma unroll
        for (int i = 0; i < N; ++i) leader.see(z[v][i], static_cast<unsigned>(at) + i);
      } else {
        draw(z[v], static_cast<unsigned>(at), inverse, key, shared_best, leader);
      }
    }
  }
  const Best mine = Best{ordered_key(leader.sum)} << 32 | ~leader.token;
  const Best best = block_reduce(mine, Best{0}, shared, [](Best x, Best y) { return x > y ? x : y; });
  if (threadIdx.x != 0) return;
  if (partial != nullptr)
    partial[row * gridDim.y + blockIdx.y] = best;
  else
    a.token[row] = static_cast<std::int32_t>(~static_cast<unsigned>(best));
}

// One warp per row.
__global__ void __launch_bounds__(kWarpSize) sample_merge(const Best* partial, int parts, std::int32_t* token) {
  Best best = 0;
  for (int p = threadIdx.x; p < parts; p += kWarpSize) best = max(best, partial[std::int64_t{blockIdx.x} * parts + p]);
  best = warp_max(best);
  if (threadIdx.x == 0) token[blockIdx.x] = static_cast<std::int32_t>(~static_cast<unsigned>(best));
}

}  // namespace

void run_cuda(const Sampling& given, CudaContext& cuda) {
  Sampling a = given;
  if (a.rows == 0) return;
  if (a.vocabulary > std::numeric_limits<std::int32_t>::max() || a.vocabulary < 1)
    throw CudaError("sampling from " + std::to_string(a.vocabulary) + " tokens; tokens are numbers of 31 bits, and at least one is needed");
  const CudaContext::Frame frame(cuda);
  if (a.stride == 0) a.stride = a.vocabulary;
  const bool vectors = a.vocabulary % 8 == 0 && a.stride % 8 == 0 && aligned16({a.logits});
  // Two blocks per multiprocessor, unless parts become small.
  const std::int64_t wanted = ceil_div(2 * cuda.gpu().multiprocessors, a.rows), most = ceil_div(a.vocabulary, kLeastPart);
  const std::int64_t part = ceil_div(ceil_div(a.vocabulary, std::min(wanted, most)), 8) * 8, parts = ceil_div(a.vocabulary, part);
  Best* const partial = parts > 1 ? cuda.scratch<Best>(a.rows * parts) : nullptr;
  for_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const LaunchShape blocks = blocks_of(grid_of(a.rows, parts), kThreads);
    launch("sample_rows", cuda, blocks, vectors ? sample_rows<T, 8> : sample_rows<T, 1>, a, partial, part);
  });
  if (partial == nullptr) return;
  launch("sample_merge", cuda, blocks_of(a.rows, kWarpSize), sample_merge, partial, static_cast<int>(parts), a.token);
}

}  // namespace kvlab
