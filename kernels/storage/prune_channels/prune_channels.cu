#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/storage/prune_channels/prune_channels.h"

namespace kvlab {

namespace {

constexpr int kTokens = 32;  // of a block

struct Prune {
  DeviceList list;
  const float* channel_score;
  const std::int32_t* line;
  std::int32_t keep;
  int chunks;
};

// A block per row and kTokens tokens.
template <class T>
__global__ void __launch_bounds__(kRowThreads) prune_channels(Prune a) {
  const int row = blockIdx.x / a.chunks, d = a.list.rows.head_dim;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) % a.chunks * kTokens,
                     end = min(first + kTokens, listed_count(a.list, row));
  if (first >= end) return;
  const float* const score = a.channel_score + static_cast<std::int64_t>(a.line[row]) * d;
  for (int c = threadIdx.x; c < d; c += kRowThreads) {
    int larger = 0;
    for (int other = 0; other < d; ++other) larger += score[other] > score[c] || (score[other] == score[c] && other < c) ? 1 : 0;
    if (larger < a.keep) continue;
    for (std::int32_t i = first; i < end; ++i) store_float(listed_at<T>(a.list, row, i) + c, 0.0F);
  }
}

}  // namespace

void run_cuda(const PruneChannels& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  Prune p{on_device(a.tokens, cuda), a.channel_score, cuda.upload(a.line, a.tokens.kv.num_rows), a.keep, 0};
  p.chunks = static_cast<int>(ceil_div(p.list.longest, kTokens));
  for_type(a.tokens.kv.type, [&](auto zero) {
    launch("prune_channels", cuda, block_each(std::int64_t{a.tokens.kv.num_rows} * p.chunks), prune_channels<decltype(zero)>, p);
  });
}

}  // namespace kvlab
