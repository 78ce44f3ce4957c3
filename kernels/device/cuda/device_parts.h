#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/upload.h"
#include "kernels/kv_rows.h"

namespace kvlab {

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
