#pragma once

#include "kernels/element.h"
#include "kernels/parted_rows.h"
#include "kernels/rows/body.h"

// K and V in row operations: element types known at run time.
namespace kvlab {

KVLAB_BODY inline float element_at(const void* data, std::int64_t i, ElementType type) {
  return type == ElementType::kF32   ? static_cast<const float*>(data)[i]
         : type == ElementType::kF16 ? to_float(static_cast<const f16*>(data)[i])
                                     : to_float(static_cast<const bf16*>(data)[i]);
}

KVLAB_BODY inline void set_element(void* data, std::int64_t i, ElementType type, float x) {
  if (type == ElementType::kF32)
    static_cast<float*>(data)[i] = x;
  else if (type == ElementType::kF16)
    static_cast<f16*>(data)[i] = from_float<f16>(x);
  else
    static_cast<bf16*>(data)[i] = from_float<bf16>(x);
}

// Rounded to binary16 as kernels/storage/cast: NaN becomes 0, infinity the largest finite number.
KVLAB_BODY inline f16 stored_half(float x) {
  constexpr float kMost = 65504.0F;
  return from_float<f16>(x != x ? 0.0F : x < -kMost ? -kMost : x > kMost ? kMost : x);
}

// n elements, bit for bit.
KVLAB_BODY inline void copy_bits(const void* from, std::int64_t i, void* to, std::int64_t j, std::int64_t n, ElementType type) {
  if (type == ElementType::kF32) {
    for (std::int64_t c = 0; c < n; ++c) static_cast<float*>(to)[j + c] = static_cast<const float*>(from)[i + c];
  } else {
    for (std::int64_t c = 0; c < n; ++c) static_cast<std::uint16_t*>(to)[j + c] = static_cast<const std::uint16_t*>(from)[i + c];
  }
}

// Arrays in CPU memory, for shapes(visit).
void visit_parts(PartedRows& rows, auto&& visit) {
  visit(rows.kv), visit(rows.kept_first, rows.kv.num_rows + 1), visit(rows.dropped_first, rows.kv.num_rows + 1);
}

}  // namespace kvlab
