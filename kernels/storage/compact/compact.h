#pragma once

#include <cstdint>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// `tokens` per (layer, KV head): K and V [head_dim] are read and written once, with an int32 source position each.
struct CompactShape {
  std::int64_t tokens = 0;
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  std::int64_t kv_bytes = 2;  // per element
};

constexpr std::int64_t bytes(const CompactShape& s) { return s.tokens * s.layers * s.kv_heads * (4 * s.head_dim * s.kv_bytes + 4); }
constexpr std::int64_t flops(const CompactShape&) { return 0; }

// Moves kept tokens to the front, in order: K, V, positions and statistics. The caller updates lengths.
struct CompactRows {
  KvRows kv;
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // ascending within a row
};
OpCall call(const CompactRows&);
void run_cpu(const CompactRows&);
// On a GPU index_first is in CPU memory.
void run_cuda(const CompactRows&, CudaContext&);

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
