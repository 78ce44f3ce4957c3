#pragma once

#include <cstdint>
#include <vector>

namespace kvlab {

// Sums over the queries of one KV head, in double precision: of q, and of q q^T.
class FilterMoments {
 public:
  explicit FilterMoments(std::int32_t head_dim);
  // Adds the vectors [head_dim] at queries, queries + stride, ..., `count` of them.
  void add(const float* queries, std::int64_t count, std::int64_t stride);
  // [head_dim]: -u, with u the main eigenvector of the sum of q q^T, turned so that its product with the sum of q is not negative.
  [[nodiscard]] std::vector<float> filter() const;

 private:
  std::int32_t head_dim_;
  std::vector<double> sum_;     // [head_dim]
  std::vector<double> square_;  // [head_dim, head_dim]
};

}  // namespace kvlab
