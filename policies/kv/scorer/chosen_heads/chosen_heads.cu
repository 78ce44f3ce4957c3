#include <algorithm>
#include <cmath>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/query_lines.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"

namespace kvlab {

namespace {

// Line t of query head g of row r: line_first[r] + g * queries + t.
struct HeadSums {
  LineRows rows;
  const QueryLine* lines;
  const LineStats* stats;
  const std::int64_t* line_first;  // [num_rows + 1]
  float* sums;                     // row r, head g from group * first[r] + g * len[r] on

  __device__ float* sums_of(int row, int head) const {
    return sums + rows.kv.group * rows.kv.first[row] + std::int64_t{head} * rows.kv.len[row];
  }
};

// A warp per token of a row.
template <class T>
__global__ void __launch_bounds__(kRowThreads) sum_columns(HeadSums a, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= a.rows.kv.len[row]) return;
  const std::int64_t first = a.line_first[row], each = (a.line_first[row + 1] - first) / a.rows.kv.group;
  for (int g = 0; g < a.rows.kv.group; ++g) {
    float sum = 0;
    for (std::int64_t l = first + g * each; l < first + (g + 1) * each; ++l) sum += a.rows.probability<T>(a.lines[l], a.stats[l], i);
    if (lane_index() == 0) a.sums_of(row, g)[i] = sum;
  }
}

// chosen [num_sequences, num_heads]: the heads that pay most to the middle. One block per sequence; `paid` [num_sequences, q_heads].
__global__ void __launch_bounds__(kRowThreads)
    choose_heads(HeadSums a, std::int32_t sinks, std::int32_t recent, std::int32_t num_heads, float* paid, std::int32_t* chosen) {
  KVLAB_SHARED(float, shared, 33);
  const int group = a.rows.kv.group, heads = a.rows.kv.kv_heads * group, row0 = blockIdx.x * a.rows.kv.kv_heads;
  float* const mine = paid + std::int64_t{blockIdx.x} * heads;
  for (int h = 0; h < heads; ++h) {
    const std::int32_t n = a.rows.kv.len[row0 + h / group], begin = min(sinks, n), end = max(begin, n - recent);
    const float* const sums = a.sums_of(row0 + h / group, h % group);
    float sum = 0;
    for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kRowThreads) sum += sums[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) mine[h] = sum;
  }
  __syncthreads();
  for (int h = threadIdx.x; h < heads; h += kRowThreads) {
    int better = 0;
    for (int other = 0; other < heads; ++other) better += mine[other] > mine[h] || (mine[other] == mine[h] && other < h) ? 1 : 0;
    if (better < num_heads) chosen[std::int64_t{blockIdx.x} * num_heads + better] = h;
  }
}

struct MeanOfHeads {
  HeadSums a;
  const std::int32_t* chosen;
  std::int32_t num_heads;
  bool per_sequence;  // a list each, not one for all
  float* scores;
  __device__ std::int64_t count(int row) const { return a.rows.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const DeviceRows& kv = a.rows.kv;
    const int sequence = row / kv.kv_heads;
    const std::int32_t* const heads = per_sequence ? chosen + std::int64_t{sequence} * num_heads : chosen;
    float mean = 0;
    for (int j = 0; j < num_heads; ++j)
      mean += a.sums_of(sequence * kv.kv_heads + heads[j] / kv.group, heads[j] % kv.group)[i] / static_cast<float>(num_heads);
    scores[kv.first[row] + i] = mean;
  }
};

std::vector<QueryLine> lines_of(const ChosenHeads& a, std::vector<std::int64_t>& line_first) {
  std::vector<QueryLine> lines;
  line_first.assign(1, 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    const std::int32_t head0 = r % a.kv.kv_heads * a.kv.group;
    const std::int64_t stride = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
    for (std::int32_t g = 0; g < a.kv.group; ++g)
      for (std::int32_t t = 0; t < q.count; ++t)
        lines.push_back({q.data + t * stride + static_cast<std::int64_t>(head0 + g) * a.kv.head_dim, r, q.first_position + t});
    line_first.push_back(static_cast<std::int64_t>(lines.size()));
  }
  return lines;
}

}  // namespace

void run_cuda(const ChosenHeads& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  HeadSums sums{};
  sums.rows.kv = on_device(a.kv, cuda), sums.rows.scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  const DeviceRows& kv = sums.rows.kv;
  std::vector<std::int64_t> line_first;
  const std::vector<QueryLine> lines = lines_of(a, line_first);
  const auto [device_lines, device_first] = upload_all(cuda, std::span(lines), std::span<const std::int64_t>(line_first));
  LineStats* const stats = cuda.scratch<LineStats>(static_cast<std::int64_t>(lines.size()));
  sums.lines = device_lines, sums.line_first = device_first, sums.stats = stats;
  sums.sums = cuda.scratch<float>(kv.group * kv.total);
  const auto chunks = static_cast<int>(ceil_div(kv.longest, kRowThreads / kWarpSize));
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("chosen_heads", cuda, block_each(static_cast<std::int64_t>(lines.size())), line_stats<T>, sums.rows, device_lines, stats);
    launch("chosen_heads", cuda, block_each(std::int64_t{kv.num_rows} * chunks), sum_columns<T>, sums, chunks);
  });
  const std::int32_t sequences = a.kv.num_sequences(), q_heads = kv.kv_heads * kv.group;
  const std::int32_t num_heads = a.heads == nullptr ? std::min(q_heads, a.num_heads) : a.num_heads;
  const std::int32_t* chosen = cuda.upload(a.heads, num_heads);
  if (chosen == nullptr) {
    std::int32_t* const found = cuda.scratch<std::int32_t>(std::int64_t{sequences} * num_heads);
    launch("chosen_heads", cuda, block_each(sequences), choose_heads, sums, a.sinks, a.recent, num_heads,
           cuda.scratch<float>(std::int64_t{sequences} * q_heads), found);
    chosen = found;
  }
  launch_over_rows("chosen_heads", cuda, kv.num_rows, kv.longest, MeanOfHeads{sums, chosen, num_heads, a.heads == nullptr, a.scores});
}

}  // namespace kvlab
