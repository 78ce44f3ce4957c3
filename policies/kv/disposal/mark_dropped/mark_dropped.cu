#include "kernels/device/cuda/device_parts.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/score/word_scores/word_scores.h"
#include "policies/kv/disposal/mark_dropped/mark_dropped.h"

namespace kvlab {

namespace {

constexpr int kThreads = 512;

// One block per row, the dropped list in pieces of a block.
__global__ void __launch_bounds__(kThreads)
    mark_dropped(DeviceParts rows, std::int32_t channel, const std::int64_t* first, std::int32_t* index) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = blockIdx.x;
  std::uint32_t* const words = rows.kv.words + channel * rows.kv.pool_tokens;
  std::int32_t* const out = index + first[row];
  const auto room = static_cast<std::int32_t>(first[row + 1] - first[row]), n = rows.num_dropped(row);
  std::int32_t listed = 0;
  for (std::int32_t at = 0; at < n && listed < room; at += kThreads) {
    const auto i = at + static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t token = i < n ? rows.dropped[rows.dropped_first[row] + i] : -1;
    const std::int64_t slot = token >= 0 ? rows.kv.slot(row, token) : 0;
    const bool lacks = token >= 0 && (words[slot] & kTokenMark) == 0;
    std::int32_t all;
    const std::int32_t place = listed + block_scan_exclusive(lacks ? 1 : 0, shared, all);
    if (lacks && place < room) {
      words[slot] |= kTokenMark;
      out[place] = token;
    }
    listed += all;
  }
  for (std::int32_t i = min(listed, room) + static_cast<std::int32_t>(threadIdx.x); i < room; i += kThreads) out[i] = -1;
}

}  // namespace

void run_cuda(const MarkDropped& a, CudaContext& cuda) {
  if (a.rows.kv.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  launch("mark_dropped", cuda, {dim3(static_cast<unsigned>(a.rows.kv.num_rows)), dim3(kThreads)}, mark_dropped, on_device(a.rows, cuda),
         a.channel, cuda.upload(a.first, a.rows.kv.num_rows + 1), a.index);
}

}  // namespace kvlab
