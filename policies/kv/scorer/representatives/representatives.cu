#include "base/random.h"
#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/representatives/representatives.h"

namespace kvlab {

namespace {

struct Crush {
  DeviceRows kv;
  const std::int32_t *important, *representatives;
  const std::uint8_t* anchor;  // [num_sequences, kv_heads]
  bool majority;               // found here instead
  float *scores, *mean;        // mean, bits, rank, distance, order: of a sequence at its first row's tokens
  std::uint8_t* bits;          // [total] by row
  std::int32_t *rank, *distance, *order;
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) sign_tokens(Crush a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  const float* const scores = a.scores + a.kv.first[row];
  const auto key = [&](std::int32_t i) { return ordered_key(scores[i]); };
  block_choose(a.kv.len[row], block_cut(a.kv.len[row], a.important[row / a.kv.kv_heads], key, counts), key, sums,
               [&](std::int32_t i, bool chosen, std::int32_t) { a.bits[a.kv.first[row] + i] = chosen ? 1 : 0; });
}

// One block per sequence.
__global__ void __launch_bounds__(kRowThreads) rank_tokens(Crush a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int s = blockIdx.x, heads = a.kv.kv_heads, row0 = s * heads, n = a.kv.len[row0];
  const std::int64_t at = a.kv.first[row0];
  float* const mean = a.mean + at;
  std::int32_t *const rank = a.rank + at, *const distance = a.distance + at, *const order = a.order + at;
  for (int i = threadIdx.x; i < n; i += kRowThreads) {
    float x = 0;
    for (int h = 0; h < heads; ++h) x += a.scores[a.kv.first[row0 + h] + i] / static_cast<float>(heads);
    mean[i] = x, distance[i] = 0;
  }
  __syncthreads();
  const auto key = [&](std::int32_t i) { return ordered_key(mean[i]); };
  block_choose(n, block_cut(n, a.important[s], key, counts), key, sums,
               [&](std::int32_t i, bool chosen, std::int32_t) { rank[i] = chosen ? 2 : 0; });
  for (int h = 0; h < heads; ++h) {  // a thread meets the same tokens in every loop
    const std::uint8_t* const bits = a.bits + a.kv.first[row0 + h];
    int anchor = a.anchor[s * heads + h];
    if (a.majority) {
      int ones = 0;
      for (int i = threadIdx.x; i < n; i += kRowThreads) ones += bits[i];
      anchor = 2 * block_sum(ones, counts) > n ? 1 : 0;
    }
    for (int i = threadIdx.x; i < n; i += kRowThreads) distance[i] += bits[i] != anchor ? 1 : 0;
  }
  __syncthreads();
  int others = 0;
  for (int wanted = 0; wanted <= heads; ++wanted) {  // order: the others by distance, then by index
    for (int first = 0; first < n; first += kRowThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      const bool is_next = i < n && rank[i] == 0 && distance[i] == wanted;
      std::int32_t all;
      const std::int32_t place = others + block_scan_exclusive(is_next ? 1 : 0, counts, all);
      if (is_next) order[place] = i;
      others += all;
    }
  }
  __syncthreads();
  const std::int64_t count = a.representatives[s];
  for (std::int64_t j = threadIdx.x; j < count; j += kRowThreads) rank[order[(2 * j + 1) * others / (2 * count)]] = 1;
  __syncthreads();
  for (int h = 0; h < heads; ++h) {
    float* const scores = a.scores + a.kv.first[row0 + h];
    for (int i = threadIdx.x; i < n; i += kRowThreads)
      if (fabsf(scores[i]) != INFINITY) scores[i] = static_cast<float>(rank[i]);
  }
}

std::vector<std::uint8_t> anchors_of(const Representatives& a) {
  std::vector<std::uint8_t> anchors;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s)
    for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
      const Draw draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(h)};
      const bool one = a.anchor == Representatives::Anchor::kOnes || (a.anchor == Representatives::Anchor::kAlternating && h % 2 == 1) ||
                       (a.anchor == Representatives::Anchor::kRandom && draw.below(2) == 1);
      anchors.push_back(one ? 1 : 0);
    }
  return anchors;
}

}  // namespace

void run_cuda(const Representatives& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<std::uint8_t> anchors = anchors_of(a);
  Crush c{};
  c.kv = on_device(a.kv, cuda);
  std::tie(c.important, c.representatives, c.anchor) =
      upload_all(cuda, host_array(a.important, a.kv.num_sequences()), host_array(a.representatives, a.kv.num_sequences()),
                 std::span<const std::uint8_t>(anchors));
  c.majority = a.anchor == Representatives::Anchor::kMajority, c.scores = a.scores;
  c.mean = cuda.scratch<float>(c.kv.total), c.bits = cuda.scratch<std::uint8_t>(c.kv.total);
  c.rank = cuda.scratch<std::int32_t>(c.kv.total), c.distance = cuda.scratch<std::int32_t>(c.kv.total);
  c.order = cuda.scratch<std::int32_t>(c.kv.total);
  launch("representatives", cuda, block_each(c.kv.num_rows), sign_tokens, c);
  launch("representatives", cuda, block_each(a.kv.num_sequences()), rank_tokens, c);
}

}  // namespace kvlab
