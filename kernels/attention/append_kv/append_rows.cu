#include <algorithm>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

struct Args {
  DeviceRows kv;
  const AppendedTokens* news;
  std::int64_t token_stride;
  std::int32_t blocks;  // of each sequence
};

// A thread has `Each` channels of K and V of a token and head.
template <class In, class Out, int Each>
__global__ void __launch_bounds__(kThreads) append_rows(Args a) {
  const AppendedTokens news = a.news[static_cast<std::int32_t>(blockIdx.x) / a.blocks];
  const std::int32_t parts = a.kv.head_dim / Each;
  const std::int64_t item = static_cast<std::int64_t>(static_cast<std::int32_t>(blockIdx.x) % a.blocks) * kThreads + threadIdx.x;
  const std::int64_t token = item / parts / a.kv.kv_heads;
  if (token >= news.count) return;
  const auto head = static_cast<std::int32_t>(item / parts % a.kv.kv_heads);
  const std::int32_t channel = static_cast<std::int32_t>(item % parts) * Each, row = news.sequence * a.kv.kv_heads + head;
  const std::int64_t slot = a.kv.slot(row, a.kv.len[row] - news.count + static_cast<std::int32_t>(token));
  const std::int64_t from = token * a.token_stride + std::int64_t{head} * a.kv.head_dim + channel, to = slot * a.kv.head_dim + channel;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const In* const in = static_cast<const In*>(side == 0 ? news.k : news.v) + from;
    Out* const out = static_cast<Out*>(side == 0 ? a.kv.k : a.kv.v) + to;
    float x[Each];
    load_numbers(in, x);
    store_numbers(out, x);
  }
  if (channel != 0) return;
  a.kv.position[slot] = news.first_position + static_cast<std::int32_t>(token);
  for (std::int32_t w = 0; w < a.kv.num_words; ++w) a.kv.words[w * a.kv.pool_tokens + slot] = 0;
}

}  // namespace

void run_cuda(const AppendRows& a, CudaContext& cuda) {
  std::int64_t most = 0;
  for (const AppendedTokens& news : a.news) most = std::max<std::int64_t>(most, news.count);
  if (most == 0) return;
  const CudaContext::Frame frame(cuda);
  Args args{on_device(a.kv, cuda), cuda.upload(a.news.data(), std::ssize(a.news)), a.token_stride, 0};
  if (args.token_stride == 0) args.token_stride = std::int64_t{a.kv.kv_heads} * a.kv.head_dim;
  bool wide = a.kv.head_dim % 8 == 0 && args.token_stride % 8 == 0;
  for (const AppendedTokens& news : a.news) wide = wide && aligned16({news.k, news.v});
  args.blocks = static_cast<std::int32_t>(ceil_div(most * a.kv.kv_heads * (a.kv.head_dim / (wide ? 8 : 1)), kThreads));
  const LaunchShape blocks = blocks_of(std::ssize(a.news) * args.blocks, kThreads);
  for_type(a.type, [&](auto in) {
    for_type(a.kv.type, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch("append_rows", cuda, blocks, wide ? append_rows<In, Out, 8> : append_rows<In, Out, 1>, args);
    });
  });
}

}  // namespace kvlab
