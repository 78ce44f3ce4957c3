#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/device/cuda/gpu_memory.h"

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

}  // namespace kvlab
