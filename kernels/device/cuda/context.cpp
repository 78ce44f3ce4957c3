#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

CudaContext::CudaContext(int gpu) {
  use_gpu(gpu);
  gpu_ = gpu_info(gpu);
  stream_ = cuda::make_stream();
}

CudaContext::~CudaContext() {
  blas_.reset();
  cuda::destroy(stream_);
}

void* CudaContext::take(std::int64_t bytes) {
  constexpr std::int64_t kChunkBytes = 64 << 20, kAlign = 256;
  const std::int64_t rounded = round_up(std::max<std::int64_t>(bytes, 1), kAlign);
  while (chunk_ < chunks_.size() && used_ + rounded > chunks_[chunk_].size()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max(rounded, kChunkBytes)), used_ = 0;
  void* at = chunks_[chunk_].data() + used_;
  used_ += rounded;
  cuda::begin_scratch(at, rounded);
  return at;
}

DeviceRows on_device(const KvRows& kv, CudaContext& cuda) {
  DeviceRows d{kv.num_rows, kv.kv_heads, kv.group, kv.head_dim, kv.page_tokens, kv.num_words};
  d.pool_tokens = kv.pool_tokens, d.total = kv.total();
  d.k = kv.k, d.v = kv.v, d.position = kv.position, d.words = kv.words;
  std::int64_t pages = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    d.longest = std::max(d.longest, kv.len[r]);
    if (kv.len[r] > 0) pages = std::max<std::int64_t>(pages, kv.page_begin[r] + (kv.len[r] - 1) / kv.page_tokens + 1);
  }
  d.len = cuda.upload(kv.len, kv.num_rows);
  d.first = cuda.upload(kv.first, kv.num_rows + 1);
  d.page_begin = cuda.upload(kv.page_begin, kv.num_rows);
  d.page = cuda.upload(kv.page, pages);
  return d;
}

}  // namespace kvlab
