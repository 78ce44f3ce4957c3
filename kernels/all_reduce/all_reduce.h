#pragma once

#include <cstdint>

namespace kvlab {

// Sum of message_bytes over `ranks` GPUs by a ring: reduce-scatter, then all-gather, ranks - 1 hops each, a hop carrying
// 1 / ranks of the message (Patarasu and Yuan 2009, "Bandwidth optimal all-reduce algorithms").
struct AllReduceShape {
  std::int64_t message_bytes = 0;
  std::int64_t ranks = 1;
  std::int64_t activation_bytes = 2;
};

// Bytes each GPU sends (and receives) over its link.
constexpr std::int64_t bytes(const AllReduceShape& s) { return 2 * (s.ranks - 1) * s.message_bytes / s.ranks; }
// Adds on each GPU: one per element received while reducing.
constexpr std::int64_t flops(const AllReduceShape& s) { return (s.ranks - 1) * s.message_bytes / s.ranks / s.activation_bytes; }

}  // namespace kvlab
