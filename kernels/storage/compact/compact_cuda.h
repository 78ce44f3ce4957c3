#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/storage/compact/compact.h"

namespace kvlab {

// Copies kept tokens to new pages, in list order: K, V, positions and statistics. `to` and `from` share no page.
struct DeviceGather {
  DeviceRows from, to;                        // `to`: room for the lists; len and first are not read
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // [kept]
  std::int64_t kept = 0;
  std::int32_t longest = 0;  // of the rows' lists
  ElementType type = ElementType::kBf16;
};

constexpr CompactShape shape(const DeviceGather& a) { return {a.kept, 1, 1, a.from.head_dim, element_bytes(a.type)}; }
void run_cuda(const DeviceGather& a, CudaContext& cuda);

}  // namespace kvlab
