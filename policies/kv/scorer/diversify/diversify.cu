#include <algorithm>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/diversify/diversify.h"

namespace kvlab {

namespace {

struct Diverse {
  DeviceRows kv;
  const std::int32_t* sources;       // [num_rows]
  const std::int64_t* source_first;  // [num_rows + 1]
  std::int32_t* source;              // [source_first[num_rows]] tokens, ascending
  float* scale;                      // [total] 1 / |k|
  bool product;
  float* scores;
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) choose_sources(Diverse a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  const float* const scores = a.scores + a.kv.first[row];
  const auto key = [&](std::int32_t i) { return ordered_key(scores[i]); };
  std::int32_t* const source = a.source + a.source_first[row];
  block_choose(a.kv.len[row], block_cut(a.kv.len[row], a.sources[row], key, counts), key, sums,
               [&](std::int32_t i, bool chosen, std::int32_t before) {
                 if (chosen) source[before] = i;
               });
}

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) measure_keys(Diverse a, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= a.kv.len[row]) return;
  const T* const key = key_at<T>(a.kv, row, i);
  const float square = warp_dot(key, key, a.kv.head_dim);
  if (lane_index() == 0) a.scale[a.kv.first[row] + i] = 1.0F / fmaxf(sqrtf(square), 1e-12F);
}

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) lower_scores(Diverse a, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= a.kv.len[row]) return;
  const std::int64_t at = a.kv.first[row];
  float& score = a.scores[at + i];
  if (fabsf(score) == INFINITY) return;
  const T* const key = key_at<T>(a.kv, row, i);
  float stays = 1.0F;
  for (std::int64_t s = a.source_first[row]; s < a.source_first[row + 1]; ++s) {
    const std::int32_t source = a.source[s];
    if (source == i) continue;
    const float cosine = warp_dot(key, key_at<T>(a.kv, row, source), a.kv.head_dim) * a.scale[at + i] * a.scale[at + source];
    const float rest = fminf(fmaxf(1.0F - cosine, 0.0F), 1.0F);
    stays = a.product ? stays * rest : fminf(stays, rest);
  }
  if (lane_index() == 0) score *= stays;
}

}  // namespace

void run_cuda(const Diversify& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<std::int64_t> source_first(1, 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) source_first.push_back(source_first.back() + std::min(a.sources[r], a.kv.len[r]));
  Diverse d{};
  d.kv = on_device(a.kv, cuda);
  std::tie(d.sources, d.source_first) = upload_all(cuda, host_array(a.sources, a.kv.num_rows), std::span<const std::int64_t>(source_first));
  d.source = cuda.scratch<std::int32_t>(source_first.back()), d.scale = cuda.scratch<float>(d.kv.total);
  d.product = a.product, d.scores = a.scores;
  const auto chunks = static_cast<int>(ceil_div(d.kv.longest, kRowThreads / kWarpSize));
  launch("diversify", cuda, block_each(d.kv.num_rows), choose_sources, d);
  for_type(a.kv.type, [&](auto zero) {
    launch("diversify", cuda, block_each(std::int64_t{d.kv.num_rows} * chunks), measure_keys<decltype(zero)>, d, chunks);
    launch("diversify", cuda, block_each(std::int64_t{d.kv.num_rows} * chunks), lower_scores<decltype(zero)>, d, chunks);
  });
}

}  // namespace kvlab
