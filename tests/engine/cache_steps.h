#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "tests/engine/probe.h"
#include "tests/engine/sequence_of.h"

// The probe's steps over a PolicyCache.
namespace kvlab {

inline std::vector<std::int32_t> some_ids(std::int32_t n, std::int32_t seed) {
  std::vector<std::int32_t> ids{256};
  for (std::int32_t i = 1; i < n; ++i) ids.push_back(32 + (i * i * 7 + i * seed) % 90);
  return ids;
}

// Runs pieces of sequences whose ids are known.
inline std::vector<float> run_step(PolicyCache& cache, const std::vector<StepPiece>& pieces) {
  std::vector<std::int32_t> ids, positions;
  for (const StepPiece& p : pieces) {
    for (std::int32_t i = 0; i < p.new_tokens; ++i) {
      positions.push_back(p.sequence->seen_tokens + i);
      ids.push_back(p.sequence->ids[static_cast<std::size_t>(positions.back())]);
    }
  }
  cache.begin_step(pieces);
  std::vector<float> hidden = probe().forward({ids, positions}, cache);
  cache.end_step(hidden);
  return probe().logits(hidden);
}

}  // namespace kvlab
