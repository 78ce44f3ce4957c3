#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace kvlab {

// coded / uncompressed bytes per layer, over the prompts so far; nominal before the first.
class MeasuredShare {
 public:
  explicit MeasuredShare(double nominal) : nominal_(nominal) {}
  void add(std::int32_t layer, std::int64_t coded_bytes, std::int64_t dense_bytes) {
    const auto l = static_cast<std::size_t>(layer);
    if (layers_.size() <= l) layers_.resize(l + 1);
    layers_[l].coded += coded_bytes;
    layers_[l].dense += dense_bytes;
  }
  // share * dense_bytes, rounded up.
  [[nodiscard]] std::int64_t of(std::int32_t layer, std::int64_t dense_bytes) const {
    const auto l = static_cast<std::size_t>(layer);
    const bool is_known = l < layers_.size() && layers_[l].dense != 0;
    const double share = is_known ? static_cast<double>(layers_[l].coded) / static_cast<double>(layers_[l].dense) : nominal_;
    return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(dense_bytes)));
  }

 private:
  struct Layer {
    std::int64_t coded = 0, dense = 0;
  };
  double nominal_;
  std::vector<Layer> layers_;
};

}  // namespace kvlab
