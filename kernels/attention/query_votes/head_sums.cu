#include <cmath>

#include "kernels/attention/query_votes/head_sums.h"
#include "kernels/device/cuda/query_lines.cuh"
#include "kernels/device/cuda/upload.h"

namespace kvlab {

namespace {

// Line t of query head g of row r: line_first[r] + g * queries + t.
struct HeadSums {
  LineRows rows;
  const QueryLine* lines;
  const LineStats* stats;
  const std::int64_t* line_first;  // [num_rows + 1]
  const VoteWeight* weights;
  float* sums;

  __device__ float weight(int row, std::int32_t i, std::int32_t query) const {
    if (weights == nullptr) return 1.0F;
    const VoteWeight w = weights[row / rows.kv.kv_heads];
    if (w.group_tokens == 0) return 1 + w.rise * static_cast<float>(query - w.begin);
    const std::int32_t position = rows.kv.position[rows.kv.slot(row, i)];
    const std::int32_t after = query - w.begin - ((position - w.begin) / w.group_tokens + 1) * w.group_tokens;
    return position >= w.begin && after >= 0 && after < w.recent ? 1 + w.rise * static_cast<float>(after) : 0.0F;
  }
};

// A warp per token of a row.
template <class T>
__global__ void __launch_bounds__(kRowThreads) sum_columns(HeadSums a, int chunks) {
  const DeviceRows& kv = a.rows.kv;
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= kv.len[row]) return;
  const std::int64_t first = a.line_first[row], each = (a.line_first[row + 1] - first) / kv.group;
  for (int g = 0; g < kv.group; ++g) {
    float sum = 0;
    for (std::int64_t l = first + g * each; l < first + (g + 1) * each; ++l) {
      const float weight = a.weight(row, i, a.lines[l].position);
      if (weight != 0) sum += weight * a.rows.probability<T>(a.lines[l], a.stats[l], i);
    }
    if (lane_index() == 0) a.sums[kv.group * kv.first[row] + std::int64_t{g} * kv.len[row] + i] = sum;
  }
}

std::vector<QueryLine> lines_of(const KvRows& kv, const Queries* queries, std::vector<std::int64_t>& line_first) {
  std::vector<QueryLine> lines;
  line_first.assign(1, 0);
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const Queries& q = queries[kv.sequence(r)];
    const std::int32_t head0 = r % kv.kv_heads * kv.group;
    const std::int64_t stride = static_cast<std::int64_t>(kv.kv_heads) * kv.group * kv.head_dim;
    for (std::int32_t g = 0; g < kv.group; ++g)
      for (std::int32_t t = 0; t < q.count; ++t)
        lines.push_back({q.data + t * stride + static_cast<std::int64_t>(head0 + g) * kv.head_dim, r, q.first_position + t});
    line_first.push_back(static_cast<std::int64_t>(lines.size()));
  }
  return lines;
}

}  // namespace

float* sum_heads(const char* name, const KvRows& kv, const DeviceRows& on_gpu, const Queries* queries, const VoteWeight* weights,
                 CudaContext& cuda) {
  HeadSums sums{};
  sums.rows.kv = on_gpu, sums.rows.scale = 1.0F / std::sqrt(static_cast<float>(kv.head_dim));
  std::vector<std::int64_t> line_first;
  const std::vector<QueryLine> lines = lines_of(kv, queries, line_first);
  const auto [device_lines, device_first] = upload_all(cuda, std::span(lines), std::span<const std::int64_t>(line_first));
  LineStats* const stats = cuda.scratch<LineStats>(static_cast<std::int64_t>(lines.size()));
  sums.lines = device_lines, sums.line_first = device_first, sums.stats = stats;
  sums.weights = cuda.upload(weights, kv.num_sequences());
  sums.sums = cuda.scratch<float>(on_gpu.group * on_gpu.total);
  const auto chunks = static_cast<int>(ceil_div(on_gpu.longest, kRowThreads / kWarpSize));
  for_type(kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch(name, cuda, block_each(static_cast<std::int64_t>(lines.size())), line_stats<T>, sums.rows, device_lines, stats);
    launch(name, cuda, block_each(std::int64_t{kv.num_rows} * chunks), sum_columns<T>, sums, chunks);
  });
  return sums.sums;
}

}  // namespace kvlab
