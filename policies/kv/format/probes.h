#pragma once

#include <cstdint>
#include <vector>

#include "policies/kv/step.h"

namespace kvlab {

// Queries that vote on which tokens matter: a share of the newest, and as many at random. Depends on positions only.
struct Probes {
  double share = 0.05;  // of each kind
  // Each block has its newest ones.
  std::int32_t block_tokens = 100;

  struct Range {
    std::int32_t begin = 0, end = 0;
  };
  // In [begin, end), ascending. Random ones of the prompt: a run of 8 queries at a random place per 8 / share positions.
  [[nodiscard]] std::vector<Range> ranges(const SeqStep& seq, std::int32_t begin, std::int32_t end) const;
};

}  // namespace kvlab
