#pragma once

#include <cstdint>
#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// Which share of the uncompressed bytes a code takes whose size depends on data, per layer: what the prompts so far came to, and a
// nominal share before the first.
class MeasuredShare {
 public:
  explicit MeasuredShare(double nominal) : nominal_(nominal) {}
  void add(std::int32_t layer, std::int64_t coded_bytes, std::int64_t dense_bytes);
  // Of dense_bytes, rounded up.
  [[nodiscard]] std::int64_t of(std::int32_t layer, std::int64_t dense_bytes) const;

 private:
  struct Layer {
    std::int64_t coded = 0, dense = 0;
  };
  double nominal_;
  std::vector<Layer> layers_;
};

}  // namespace kvlab
