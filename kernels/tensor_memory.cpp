#include "kernels/tensor_memory.h"

#include "base/big_array.h"
#include "kernels/device/cuda/events.h"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

void* TensorMemory::allocate(std::int64_t bytes) const {
  if (is_pinned_) return cuda::allocate_pinned(bytes);
  return on_host() ? big_memory::take(static_cast<std::size_t>(bytes)) : cuda::allocate(bytes);
}

void TensorMemory::free(void* p, std::int64_t bytes) const noexcept {
  if (is_pinned_)
    cuda::free_pinned(p);
  else if (on_host())
    big_memory::give_back(p, static_cast<std::size_t>(bytes));
  else
    cuda::free(p);
}

void TensorMemory::copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes == 0) return;
  if (on_host())
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  else
    cuda::copy_on_device(to, from, bytes, cuda_->stream());
}

void TensorMemory::copy_ranges(std::span<const cuda::CopyRange> ranges) const {
  if (!on_host()) return cuda::copy_ranges(ranges, cuda_->stream());
  for (const cuda::CopyRange& r : ranges) copy(r.to, r.from, r.bytes);
}

void TensorMemory::from_host(void* to, const void* host, std::int64_t bytes) const {
  if (bytes == 0) return;
  if (on_host())
    std::memcpy(to, host, static_cast<std::size_t>(bytes));
  else
    cuda::to_device(to, host, bytes, cuda_->stream());
}

void TensorMemory::read(void* host, const void* from, std::int64_t bytes) const {
  if (bytes == 0) return;
  if (on_host()) {
    std::memcpy(host, from, static_cast<std::size_t>(bytes));
    return;
  }
  cuda::to_host(host, from, bytes, cuda_->stream());
  cuda_->synchronize();
}

void TensorMemory::fill(void* to, int byte, std::int64_t bytes) const {
  if (bytes == 0) return;
  if (on_host())
    std::memset(to, byte, static_cast<std::size_t>(bytes));
  else
    cuda::fill(to, byte, bytes, cuda_->stream());
}

}  // namespace kvlab
