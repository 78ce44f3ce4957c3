#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/kv_rows.h"

namespace kvlab {

struct DeviceList {
  DeviceRows rows;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;
  void* data = nullptr;  // K or V, [pool_tokens, head_dim]
  std::int32_t longest = 0;

  KVLAB_BOTH std::int32_t entries(std::int32_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  // -1: empty entry
  KVLAB_BOTH std::int64_t slot(std::int32_t row, std::int32_t i) const {
    const std::int32_t token = index[first[row] + i];
    return token < 0 ? -1 : rows.slot(row, token);
  }
};

// Valid until the current Frame ends.
inline DeviceList on_device(const ListedTokens& tokens, CudaContext& cuda) {
  const DeviceRows rows = on_device(tokens.kv, cuda);
  return {rows, cuda.upload(tokens.first, tokens.kv.num_rows + 1), tokens.index, tokens.values ? rows.v : rows.k, tokens.most_entries()};
}

}  // namespace kvlab
