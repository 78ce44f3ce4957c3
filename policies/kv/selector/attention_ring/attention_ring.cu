#include <algorithm>
#include <cmath>

#include "kernels/device/cuda/query_lines.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/attention_ring/attention_ring.h"

namespace kvlab {

namespace {

// A warp per listed token. Lines of row r: query by query, then head by head, from line_first[r] on.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    push_probabilities(LineRows a, const QueryLine* lines, const LineStats* stats, const std::int64_t* line_first, std::int32_t first_word,
                       std::int32_t ring, int chunks) {
  const int row = blockIdx.x / chunks;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= a.tokens(row)) return;
  const DeviceRows& kv = a.kv;
  std::uint32_t* const words = kv.words + first_word * kv.pool_tokens + kv.slot(row, a.token(row, i));
  std::uint32_t count = words[ring * kv.pool_tokens];
  for (std::int64_t l = line_first[row]; l < line_first[row + 1]; l += kv.group) {
    if (i >= stats[l].visible) continue;
    float p = 0;
    for (std::int64_t h = l; h < l + kv.group; ++h) p += a.probability<T>(lines[h], stats[h], i) / static_cast<float>(kv.group);
    if (lane_index() == 0) words[count % static_cast<std::uint32_t>(ring) * kv.pool_tokens] = __float_as_uint(p);
    ++count;
  }
  __syncwarp();
  if (lane_index() == 0) words[ring * kv.pool_tokens] = count;
}

}  // namespace

void run_cuda(const PushAttention& a, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) longest = std::max(longest, a.tokens(r));
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<QueryLine> lines;
  std::vector<std::int64_t> line_first(1, 0);
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    for (std::int32_t t = std::max(0, q.count - a.ring); t < q.count; ++t)
      for (std::int32_t h = 0; h < a.kv.group; ++h)
        lines.push_back({q.data + ((static_cast<std::int64_t>(t) * a.kv.kv_heads + r % a.kv.kv_heads) * a.kv.group + h) * a.kv.head_dim, r,
                         q.first_position + t});
    line_first.push_back(static_cast<std::int64_t>(lines.size()));
  }
  if (lines.empty()) return;
  LineRows rows{};
  rows.kv = on_device(a.kv, cuda);
  const auto [device_lines, device_first, index_first] =
      upload_all(cuda, std::span<const QueryLine>(lines), std::span<const std::int64_t>(line_first),
                 host_array(a.lists_tokens ? a.index_first : nullptr, a.kv.num_rows + 1));
  rows.first = index_first, rows.index = a.index, rows.lists_tokens = a.lists_tokens;
  rows.scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  LineStats* const stats = cuda.scratch<LineStats>(static_cast<std::int64_t>(lines.size()));
  const auto chunks = static_cast<int>(ceil_div(longest, kRowThreads / kWarpSize));
  for_type(a.kv.type, [&, lines_on_gpu = device_lines, first_on_gpu = device_first](auto zero) {
    using T = decltype(zero);
    launch("push_attention", cuda, block_each(static_cast<std::int64_t>(lines.size())), line_stats<T>, rows, lines_on_gpu, stats);
    launch("push_attention", cuda, block_each(std::int64_t{a.kv.num_rows} * chunks), push_probabilities<T>, rows, lines_on_gpu, stats,
           first_on_gpu, a.first_word, a.ring, chunks);
  });
}

}  // namespace kvlab
