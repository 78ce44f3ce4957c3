#include <algorithm>
#include <cmath>

#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"

namespace kvlab {

namespace {

// `count` queries and `count` tokens of one row, from `begin` on.
struct Piece {
  const float* query;  // of the row's first head, for the first token
  std::int32_t row, begin, count;
  std::int64_t line;  // of its first; lines are head by head
};

struct Pieces {
  DeviceRows kv;
  const Piece* piece;
  std::int32_t chunk_tokens, most, channel;
  bool padded;
  float scale;
  Softmax* stats;

  __device__ int pads(const Piece& p) const { return padded ? chunk_tokens - p.count : 0; }
  template <class T>
  __device__ float logit(const Piece& p, int head, std::int64_t t, std::int64_t i) const {
    const float* const q = p.query + (t * kv.kv_heads * kv.group + head) * kv.head_dim;
    return scale * warp_dot(q, key_at<T>(kv, p.row, p.begin + static_cast<std::int32_t>(i)), kv.head_dim);
  }
};

// A block per piece, head and query.
template <class T>
__global__ void __launch_bounds__(kRowThreads) piece_stats(Pieces a) {
  KVLAB_SHARED(float, shared, 33);
  const Piece p = a.piece[blockIdx.x / a.most / a.kv.group];
  const int t = blockIdx.x % a.most, head = blockIdx.x / a.most % a.kv.group;
  if (t >= p.count) return;
  Softmax s = block_softmax(p.count, shared, [&](std::int64_t i) { return a.logit<T>(p, head, t, i); });
  if (a.pads(p) > 0) {
    const float top = fmaxf(s.top, 0.0F);
    s = {top, s.sum * expf(s.top - top) + static_cast<float>(a.pads(p)) * expf(-top)};
  }
  if (threadIdx.x == 0) a.stats[p.line + std::int64_t{head} * p.count + t] = s;
}

// A warp per piece and token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) sum_received(Pieces a, std::int64_t items) {
  const std::int64_t item = warp_item();
  if (item >= items) return;
  const Piece p = a.piece[item / a.most];
  const int i = static_cast<int>(item % a.most);
  if (i >= p.count) return;
  double received = 0;
  for (int head = 0; head < a.kv.group; ++head) {
    for (int t = 0; t < p.count; ++t) {
      const Softmax s = a.stats[p.line + std::int64_t{head} * p.count + t];
      received += static_cast<double>(expf(a.logit<T>(p, head, t, i) - s.top)) / static_cast<double>(s.sum);
    }
    received += static_cast<double>(a.pads(p)) / a.chunk_tokens;  // a zero query attends evenly
  }
  if (lane_index() == 0)
    a.kv.words[a.channel * a.kv.pool_tokens + a.kv.slot(p.row, p.begin + i)] = __float_as_uint(static_cast<float>(received / a.kv.group));
}

}  // namespace

void run_cuda(const ChunkAttention& a, CudaContext& cuda) {
  const std::int64_t d = a.kv.head_dim, heads = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  std::vector<Piece> pieces;
  std::int64_t lines = 0;
  std::int32_t most = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    for (std::int32_t at = 0, count = 0; at < q.count; at += count) {
      count = std::min(a.chunk_tokens - (q.first_position + at) % a.chunk_tokens, q.count - at);
      pieces.push_back({q.data + (at * heads + static_cast<std::int64_t>(r % a.kv.kv_heads) * a.kv.group) * d, r,
                        a.kv.len[r] - q.count + at, count, lines});
      lines += static_cast<std::int64_t>(count) * a.kv.group;
      most = std::max(most, count);
    }
  }
  if (pieces.empty()) return;
  const CudaContext::Frame frame(cuda);
  const auto num_pieces = static_cast<std::int64_t>(pieces.size());
  const Pieces on_gpu{on_device(a.kv, cuda),
                      cuda.upload(pieces.data(), num_pieces),
                      a.chunk_tokens,
                      most,
                      a.channel,
                      a.padded,
                      a.scaled ? 1.0F / std::sqrt(static_cast<float>(d)) : 1.0F,
                      cuda.scratch<Softmax>(lines)};
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("chunk_attention", cuda, block_each(num_pieces * a.kv.group * most), piece_stats<T>, on_gpu);
    launch("chunk_attention", cuda, warp_each(num_pieces * most), sum_received<T>, on_gpu, num_pieces * most);
  });
}

}  // namespace kvlab
