#pragma once

#include "kernels/device/cuda/memory.h"

namespace kvlab {

// to[place[i]] = value[i], distinct places.
struct DeviceScatter {
  std::int32_t* to = nullptr;
  const std::int64_t* place = nullptr;  // [count], CPU memory
  const std::int32_t* value = nullptr;  // [count], CPU memory
  std::int64_t count = 0;
};
void run_cuda(const DeviceScatter& a, CudaContext& cuda);

}  // namespace kvlab
