#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/halving_search/halving_search.h"

namespace kvlab {

namespace {

struct HalvingRow {
  const float* query;  // [group, head_dim]
  std::int32_t base, blocks, keep, rounds;
  std::int64_t first;  // of its blocks
};

struct Halving {
  DeviceRows kv;
  const HalvingRow* rows;
  std::int32_t block_tokens;
  int2* groups;   // [first[num_rows]] begin and end
  int2* halves;   // twice as many
  float* scores;  // of the halves
  std::int32_t* block;
};

// By a whole warp: the middle token of [begin, end) times the query.
template <class T>
__device__ __forceinline__ float judge(const Halving& a, const HalvingRow& r, int row, int2 group) {
  const T* const key = key_at<T>(a.kv, row, r.base + (group.x + group.y) * a.block_tokens / 2);
  float sum = 0;
  for (int h = 0; h < a.kv.group; ++h) sum += warp_dot(r.query + h * a.kv.head_dim, key, a.kv.head_dim);
  return sum;
}

// One block per row: rounds follow each other.
template <class T>
__global__ void __launch_bounds__(kRowThreads) halve(Halving a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  const HalvingRow r = a.rows[row];
  int2 *const groups = a.groups + r.first, *const halves = a.halves + 2 * r.first;
  float* const scores = a.scores + 2 * r.first;
  for (std::int64_t g = threadIdx.x; g < r.keep; g += kRowThreads)
    groups[g] = {static_cast<int>(g * r.blocks / r.keep), static_cast<int>((g + 1) * r.blocks / r.keep)};
  __syncthreads();
  for (int round = 0; round < r.rounds; ++round) {
    std::int32_t n = 0;
    for (int at = 0; at < r.keep; at += kRowThreads) {
      const int g = at + static_cast<int>(threadIdx.x);
      const int2 group = g < r.keep ? groups[g] : int2{0, 0};
      const int middle = group.x + (group.y - group.x) / 2;
      std::int32_t all, place = n + block_scan_exclusive(g < r.keep ? (middle > group.x ? 2 : 1) : 0, counts, all);
      if (g < r.keep && middle > group.x) halves[place++] = {group.x, middle};
      if (g < r.keep) halves[place] = {middle, group.y};
      n += all;
    }
    __syncthreads();
    for (int i = warp_index(); i < n; i += kRowThreads / kWarpSize) {
      const float score = judge<T>(a, r, row, halves[i]);
      if (lane_index() == 0) scores[i] = score;
    }
    __syncthreads();
    const auto key = [&](std::int32_t i) { return ordered_key(scores[i]); };
    const BlockCut cut = block_cut(n, r.keep, key, counts);
    block_choose(n, cut, key, sums, [&](std::int32_t i, bool chosen, std::int32_t before) {
      if (chosen) groups[before] = halves[i];
    });
    __syncthreads();
  }
  for (int g = threadIdx.x; g < r.keep; g += kRowThreads) a.block[r.first + g] = groups[g].x;
}

}  // namespace

void run_cuda(const HalvingSearch& a, CudaContext& cuda) {
  const std::int64_t total = a.kv.num_rows == 0 ? 0 : a.first[a.kv.num_rows];
  if (total == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<HalvingRow> rows;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    const std::int64_t at = (static_cast<std::int64_t>(q.count - 1) * a.kv.kv_heads + r % a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
    rows.push_back({a.keep[r] > 0 ? q.data + at : nullptr, a.base[r], a.blocks[r], a.keep[r], a.rounds(r), a.first[r]});
  }
  const Halving h{on_device(a.kv, cuda),         cuda.upload(rows.data(), a.kv.num_rows), a.block_tokens, cuda.scratch<int2>(total),
                  cuda.scratch<int2>(2 * total), cuda.scratch<float>(2 * total),          a.block};
  for_type(a.kv.type, [&](auto zero) { launch("halving_search", cuda, block_each(a.kv.num_rows), halve<decltype(zero)>, h); });
}

}  // namespace kvlab
