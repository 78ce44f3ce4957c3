#pragma once

#include "kernels/device/cuda/device_list.h"
#include "kernels/device/cuda/row_tools.cuh"

namespace kvlab {

// Entries before the first -1.
__device__ __forceinline__ std::int32_t listed_count(const DeviceList& list, int row) {
  const std::int32_t* const index = list.index + list.first[row];
  return count_first(list.entries(row), [&](std::int32_t i) { return index[i] >= 0; });
}

template <class T>
__device__ __forceinline__ T* listed_at(const DeviceList& list, int row, std::int32_t i) {
  return static_cast<T*>(list.data) + list.rows.slot(row, list.index[list.first[row] + i]) * list.rows.head_dim;
}

// As kernels/storage/cast: NaN becomes 0, values are clamped.
__device__ __forceinline__ std::uint16_t half_bits(float x) {
  return x == x ? from_float<f16>(fminf(fmaxf(x, -65504.0F), 65504.0F)).bits : std::uint16_t{0};
}

}  // namespace kvlab
