#pragma once

#include <cstdint>
#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// Queries that vote on which tokens matter: a share of the newest ones, and as many at random. Positions alone decide, the same ones for
// every seed and sequence: chunks of the prompt change nothing, and what a step costs follows from lengths.
struct Probes {
  double share = 0.05;  // of each kind
  // Decode is cut into blocks of this many tokens, each with newest ones of its own.
  std::int32_t block_tokens = 100;

  struct Range {
    std::int32_t begin = 0, end = 0;
  };
  // Probe positions in [begin, end) of a sequence, ascending, as ranges. Random ones of the prompt come in runs of 8 queries, one run at
  // a random place in each stretch of 8 / share positions: neighbouring queries share the tokens they see.
  [[nodiscard]] std::vector<Range> ranges(const SeqStep& seq, std::int32_t begin, std::int32_t end) const;
};

}  // namespace kvlab
