#pragma once

#include <vector>

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// Waits for the stream.
template <class T>
std::vector<T> download(CudaContext& cuda, const T* device, std::int64_t n) {
  std::vector<T> host(static_cast<std::size_t>(n));
  if (n > 0) cuda::to_host(host.data(), device, n * static_cast<std::int64_t>(sizeof(T)), cuda.stream());
  cuda.synchronize();
  return host;
}

}  // namespace kvlab
