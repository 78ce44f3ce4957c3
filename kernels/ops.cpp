#include "kernels/ops.h"

#include <algorithm>
#include <string>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

struct Ops::CudaFrame {
  CudaContext::Frame frame;
};

Ops::Frame::Frame(Ops& ops) : ops_(ops), chunk_(ops.chunk_), used_(ops.used_) {
  if (ops.cuda_ != nullptr) cuda_ = std::unique_ptr<CudaFrame>(new CudaFrame{CudaContext::Frame(*ops.cuda_)});
}

Ops::Frame::~Frame() { ops_.chunk_ = chunk_, ops_.used_ = used_; }

void* Ops::scratch(std::int64_t bytes) {
  if (backend_ == Backend::kShapes) return nullptr;
  return backend_ == Backend::kCuda ? cuda_->scratch<std::uint8_t>(bytes) : allocate(bytes);
}

void Ops::zero(float* at, std::int64_t n) {
  if (at == nullptr) return;
  if (backend_ == Backend::kCuda) return cuda::fill(at, 0, n * 4, cuda_->stream());
  std::fill_n(at, n, 0.0F);
}

void throw_without_cuda() { throw CudaError(why_no_gpu()); }

void refuse_on_gpu(std::string_view op) { throw CudaError("operation '" + std::string(op) + "' has no CUDA kernel yet"); }

void* Ops::allocate(std::int64_t bytes) {
  constexpr std::size_t kChunkWords = 1 << 17, kLineWords = 8;  // 64-byte lines relative to a chunk
  const std::size_t words = (static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)) + 63) / 64 * kLineWords;
  while (chunk_ < chunks_.size() && used_ + words > chunks_[chunk_].size()) ++chunk_, used_ = 0;
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max(words, kChunkWords)), used_ = 0;
  void* at = chunks_[chunk_].data() + used_;
  used_ += words;
  return at;
}

}  // namespace kvlab
