#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/device/cuda/upload.h"
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

// Lists are already in device memory.
struct DeviceParts {
  DeviceRows kv;
  const std::int64_t *kept_first = nullptr, *dropped_first = nullptr;
  const std::int32_t *kept = nullptr, *dropped = nullptr;
  std::int64_t most_kept = 0, most_dropped = 0;

  KVLAB_BOTH std::int32_t num_kept(std::int32_t row) const { return static_cast<std::int32_t>(kept_first[row + 1] - kept_first[row]); }
  KVLAB_BOTH std::int32_t num_dropped(std::int32_t row) const {
    return static_cast<std::int32_t>(dropped_first[row + 1] - dropped_first[row]);
  }
};

inline DeviceParts on_device(const PartedRows& rows, CudaContext& cuda) {
  DeviceParts d{on_device(rows.kv, cuda)};
  const auto [kept_first, dropped_first] =
      upload_all(cuda, host_array(rows.kept_first, rows.kv.num_rows + 1), host_array(rows.dropped_first, rows.kv.num_rows + 1));
  d.kept_first = kept_first, d.dropped_first = dropped_first, d.kept = rows.kept, d.dropped = rows.dropped;
  for (std::int32_t r = 0; r < rows.kv.num_rows; ++r) {
    d.most_kept = rows.num_kept(r) > d.most_kept ? rows.num_kept(r) : d.most_kept;
    d.most_dropped = rows.num_dropped(r) > d.most_dropped ? rows.num_dropped(r) : d.most_dropped;
  }
  return d;
}

}  // namespace kvlab
