#include <cmath>

#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/storage/channel_stats/channel_stats.h"

namespace kvlab {

namespace {

constexpr int kWarps = kRowThreads / kWarpSize;

struct Stats {
  DeviceRows kv;
  DeviceList list;
  bool lists_tokens;
  const Queries* queries;  // null: keys or values
  bool of_values, max_abs;
  ChannelStats::Into into;
  const std::int32_t* line;
  float* out;
  int chunks;
};

__device__ __forceinline__ double join(const Stats& a, double x, double y) { return a.max_abs ? fmax(x, y) : x + y; }

// A block per row and 32 channels: a warp takes every kWarps-th vector.
template <class T>
__global__ void __launch_bounds__(kRowThreads) channel_stats(Stats a) {
  KVLAB_SHARED(double, shared, kRowThreads);
  const int row = blockIdx.x / a.chunks, c = blockIdx.x % a.chunks * kWarpSize + lane_index(), d = a.kv.head_dim;
  if (a.line[row] < 0) return;
  const Queries q = a.queries != nullptr ? a.queries[row / a.kv.kv_heads] : Queries{};
  const std::int64_t n = a.queries != nullptr ? std::int64_t{q.count} * a.kv.group
                         : a.lists_tokens     ? listed_count(a.list, row)
                                              : a.kv.len[row];
  double x = 0;
  for (std::int64_t i = warp_index(); i < n; i += kWarps) {
    float y = 0;
    if (c < d && a.queries != nullptr) {
      y = q.data[(i / a.kv.group * a.kv.kv_heads * a.kv.group + row % a.kv.kv_heads * a.kv.group + i % a.kv.group) * d + c];
    } else if (c < d) {
      const std::int32_t token = a.lists_tokens ? a.list.index[a.list.first[row] + i] : static_cast<std::int32_t>(i);
      y = load_float((a.of_values ? value_at<T>(a.kv, row, token) : key_at<T>(a.kv, row, token)) + c);
    }
    x = join(a, x, a.max_abs ? double{fabsf(y)} : double{y} * double{y});
  }
  shared[threadIdx.x] = x;
  __syncthreads();
  if (warp_index() != 0 || c >= d) return;
  for (int w = 1; w < kWarps; ++w) x = join(a, x, shared[w * kWarpSize + lane_index()]);
  const auto value = static_cast<float>(a.max_abs || n == 0 ? x : x * (1.0 / static_cast<double>(n)));
  float& out = a.out[std::int64_t{a.line[row]} * d + c];
  out = a.into == ChannelStats::Into::kMultiply ? out * value : a.into == ChannelStats::Into::kRaise ? fmaxf(out, value) : value;
}

}  // namespace

void run_cuda(const ChannelStats& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  Stats s{};
  s.kv = on_device(a.kv, cuda), s.lists_tokens = a.listed != nullptr;
  if (s.lists_tokens) s.list = on_device(*a.listed, cuda);
  if (a.source == ChannelStats::Source::kQueries) s.queries = cuda.upload(a.queries, a.kv.num_sequences());
  s.of_values = a.source == ChannelStats::Source::kValues, s.max_abs = a.kind == ChannelStats::Kind::kMaxAbs;
  s.into = a.into, s.line = cuda.upload(a.line, a.kv.num_rows), s.out = a.out;
  s.chunks = static_cast<int>(ceil_div(a.kv.head_dim, kWarpSize));
  for_type(a.kv.type, [&](auto zero) {
    launch("channel_stats", cuda, block_each(std::int64_t{a.kv.num_rows} * s.chunks), channel_stats<decltype(zero)>, s);
  });
}

}  // namespace kvlab
