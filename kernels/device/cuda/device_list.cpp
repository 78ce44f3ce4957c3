#include "kernels/device/cuda/device_list.h"

#include <algorithm>

namespace kvlab {

DeviceList on_device(const ListedTokens& tokens, CudaContext& cuda) {
  DeviceList list{on_device(tokens.kv, cuda), cuda.upload(tokens.first, tokens.kv.num_rows + 1), tokens.index};
  list.data = tokens.values ? list.rows.v : list.rows.k;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) list.longest = std::max(list.longest, tokens.entries(r));
  return list;
}

}  // namespace kvlab
