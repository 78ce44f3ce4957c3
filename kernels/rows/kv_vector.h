#pragma once

#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"

namespace kvlab {

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

}  // namespace kvlab
