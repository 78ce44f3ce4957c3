#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"

namespace kvlab {

struct DeviceRows {
  std::int32_t num_rows = 0, kv_heads = 1, group = 1, head_dim = 0, page_tokens = 1, num_words = 0;
  std::int32_t longest = 0;
  std::int64_t pool_tokens = 0, total = 0;
  const std::int32_t* len = nullptr;         // [num_rows]
  const std::int64_t* first = nullptr;       // [num_rows + 1]
  const std::int32_t* page_begin = nullptr;  // [num_rows]
  const std::int32_t* page = nullptr;
  void* k = nullptr;  // [pool_tokens, head_dim] of KvRows::type
  void* v = nullptr;
  std::int32_t* position = nullptr;
  std::uint32_t* words = nullptr;

  KVLAB_BOTH std::int64_t slot(std::int32_t row, std::int32_t i) const {
    return static_cast<std::int64_t>(page[page_begin[row] + i / page_tokens]) * page_tokens + i % page_tokens;
  }
};

// Valid until the current Frame ends.
DeviceRows on_device(const KvRows& kv, CudaContext& cuda);

}  // namespace kvlab
