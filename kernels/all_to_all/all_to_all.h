#pragma once

#include <cstdint>

namespace kvlab {

// Each of `ranks` GPUs holds tokens_per_rank rows of `width` and sends every row to `copies` experts, spread evenly over the ranks; rows
// that stay on their rank cross no link.
struct AllToAllShape {
  std::int64_t tokens_per_rank = 0, width = 0, copies = 1;
  std::int64_t ranks = 1;
  std::int64_t activation_bytes = 2;
};

// Bytes each GPU sends.
constexpr std::int64_t bytes(const AllToAllShape& s) {
  return s.tokens_per_rank * s.copies * s.width * s.activation_bytes * (s.ranks - 1) / s.ranks;
}
constexpr std::int64_t flops(const AllToAllShape&) { return 0; }

}  // namespace kvlab
