#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

// Double-precision sums over one KV head's queries.
class FilterMoments {
 public:
  explicit FilterMoments(std::int32_t head_dim);
  // `count` vectors [head_dim], `stride` apart.
  void add(const float* queries, std::int64_t count, std::int64_t stride);
  // [head_dim]: -u, u the main eigenvector of the sum of q q^T with u.(sum of q) >= 0.
  [[nodiscard]] std::vector<float> filter() const;

 private:
  std::int32_t head_dim_;
  std::vector<double> sum_;     // [head_dim]
  std::vector<double> square_;  // [head_dim, head_dim]
};

}  // namespace kvlab
