#include "policies/kv/format/measured_share.h"

#include <cmath>

namespace kvlab {

void MeasuredShare::add(std::int32_t layer, std::int64_t coded_bytes, std::int64_t dense_bytes) {
  const auto l = static_cast<std::size_t>(layer);
  if (layers_.size() <= l) layers_.resize(l + 1);
  layers_[l].coded += coded_bytes;
  layers_[l].dense += dense_bytes;
}

std::int64_t MeasuredShare::of(std::int32_t layer, std::int64_t dense_bytes) const {
  const auto l = static_cast<std::size_t>(layer);
  if (l >= layers_.size() || layers_[l].dense == 0)
    return static_cast<std::int64_t>(std::ceil(nominal_ * static_cast<double>(dense_bytes)));
  const double share = static_cast<double>(layers_[l].coded) / static_cast<double>(layers_[l].dense);
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(dense_bytes)));
}

}  // namespace kvlab
