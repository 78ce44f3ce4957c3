#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

// coded / uncompressed bytes per layer, over the prompts so far; nominal before the first.
class MeasuredShare {
 public:
  explicit MeasuredShare(double nominal) : nominal_(nominal) {}
  void add(std::int32_t layer, std::int64_t coded_bytes, std::int64_t dense_bytes);
  // share * dense_bytes, rounded up.
  [[nodiscard]] std::int64_t of(std::int32_t layer, std::int64_t dense_bytes) const;

 private:
  struct Layer {
    std::int64_t coded = 0, dense = 0;
  };
  double nominal_;
  std::vector<Layer> layers_;
};

}  // namespace kvlab
