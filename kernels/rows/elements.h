#pragma once

#include "kernels/element.h"
#include "kernels/kv_rows.h"

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

// A key or value in a row operation's body, as floats. The CPU has floats, a device any type.
template <class Team>
class KvVector {
 public:
  KVLAB_BODY KvVector(const float* data, ElementType type, std::int64_t at) : data_(data), at_(at), type_(type) {}
  KVLAB_BODY KvVector operator+(std::int64_t channel) const { return {data_, type_, at_ + channel}; }
  KVLAB_BODY float operator[](std::int64_t c) const {
    if constexpr (Team::kOnDevice) return element_at(data_, at_ + c, type_);
    return data_[at_ + c];
  }

 private:
  const float* data_;
  std::int64_t at_;
  ElementType type_;
};

template <class Team>
KVLAB_BODY KvVector<Team> key_of(const Team& /*team*/, const KvRows& kv, std::int64_t row, std::int64_t i) {
  return {kv.k, kv.type, kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i)) * kv.head_dim};
}
template <class Team>
KVLAB_BODY KvVector<Team> value_of(const Team& /*team*/, const KvRows& kv, std::int64_t row, std::int64_t i) {
  return {kv.v, kv.type, kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i)) * kv.head_dim};
}

// Chunks of rows, for operations on single tokens: a team takes a chunk, so a long row is spread over many.
constexpr std::int32_t kChunkTokens = 256;

struct TokenChunk {
  std::int32_t row, begin, count;
};

// The operation's rows().
inline std::int64_t num_chunks(const KvRows& kv) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) n += (kv.len[r] + kChunkTokens - 1) / kChunkTokens;
  return n;
}

KVLAB_BODY inline TokenChunk chunk_at(const KvRows& kv, std::int64_t item) {
  std::int32_t row = 0;
  for (;; ++row) {
    const std::int64_t chunks = (kv.len[row] + kChunkTokens - 1) / kChunkTokens;
    if (item < chunks) break;
    item -= chunks;
  }
  const auto begin = static_cast<std::int32_t>(item * kChunkTokens);
  return {row, begin, kv.len[row] - begin < kChunkTokens ? kv.len[row] - begin : kChunkTokens};
}

}  // namespace kvlab
