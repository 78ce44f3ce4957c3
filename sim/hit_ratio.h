#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "policies/block_cache/block_cache.h"
#include "sim/hit_groups.h"
#include "traces/trace.h"

namespace kvlab {

// Runs a block cache over a trace without time: how much of the traffic a cache of a given size could reuse.
//
// Requests run one after the other. A request's blocks are looked up, all of them before anything is evicted. Blocks found before the first
// miss are *hits*; blocks found after it are *orphans*, which are touched but are no hits, since attention needs every block before them.
// Then each block not found is inserted, in place of a victim where no block is blank. All blocks of the request stay referenced until its
// end and are then released, deepest first, as the engine does; of a request that is longer than the cache only the first `capacity_blocks`
// blocks take part, and the rest count as misses.
//
// With keys that name prefixes (equal keys, equal chains up to there), under exactly these rules a larger lru never has
// fewer hits, and no cache has more hits than belady of the same size: see docs/block-caches.md.

// The block lookups of a trace. Keys of one request differ from each other.
struct HitRatioTrace {
  std::vector<std::uint64_t> keys;              // all requests' blocks, in order
  std::vector<std::uint32_t> request_begin{0};  // [num_requests + 1] into keys
  std::int32_t block_tokens = 16;
  std::int64_t prompt_tokens = 0;  // of all requests, with those in no full or no hashed block
  HitGroups groups;

  [[nodiscard]] std::size_t num_requests() const { return request_begin.size() - 1; }
  [[nodiscard]] std::span<const std::uint64_t> chain(std::size_t request) const {
    return std::span(keys).subspan(request_begin[request], request_begin[request + 1] - request_begin[request]);
  }
};

// Reads `source` to its end: the full blocks of each prompt whose content the trace names. Generated tokens take no part.
// InputError where no request has content hashes, where neither of block_tokens and the trace's hash_tokens divides the
// other, where a request names one block twice, or beyond 2^32 - 3 blocks.
// each_turn is called every few thousand requests; an exception ends the reading.
HitRatioTrace load_hit_ratio_trace(TraceSource& source, std::int32_t block_tokens, const std::function<void()>& each_turn = {});

struct HitRatio {
  std::uint64_t requests = 0;
  std::uint64_t requests_with_hit = 0;
  std::uint64_t lookups = 0;  // blocks of all requests = hits + orphans + insertions + beyond_capacity
  std::uint64_t hits = 0;
  std::uint64_t orphans = 0;  // resident, but after a miss
  std::uint64_t insertions = 0;
  std::uint64_t beyond_capacity = 0;  // blocks of requests longer than the cache that did not take part
  std::uint64_t evictions = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t prompt_tokens = 0;
  std::vector<HitGroup> groups = {};  // in order of their first request; empty where the trace has no class, client or session

  [[nodiscard]] std::uint64_t misses() const { return lookups - hits; }
  [[nodiscard]] double hit_frac() const { return lookups ? static_cast<double>(hits) / static_cast<double>(lookups) : 0; }
  [[nodiscard]] double token_hit_frac() const {
    return prompt_tokens ? static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens) : 0;
  }
  bool operator==(const HitRatio&) const = default;
};

// capacity_blocks >= 1; memory grows with the smaller of it and the trace's lookups. An oracle is given the trace's own lookups as its
// future. cost_s of every block is 0 (unknown).
// each_turn: as above.
HitRatio run_hit_ratio(BlockCache& cache, const HitRatioTrace& trace, std::uint32_t capacity_blocks,
                       const std::function<void()>& each_turn = {});

// One point of a hit-ratio curve.
struct HitRatioRow {
  std::string cache;
  std::uint32_t capacity_blocks = 0;
  double capacity_gib = 0;  // 0: bytes per block not known
  HitRatio result;
};

// Every cache, with its default parameters, at every size.
std::vector<HitRatioRow> hit_ratio_curves(const std::vector<std::string>& caches, const std::vector<std::uint32_t>& capacities,
                                          const HitRatioTrace& trace, std::int64_t block_bytes = 0);

// One run of an experiment of `kind: block_cache_mrc`, one cache at one size (lists in the file are axes of the sweep): reads
// block_caches, capacity_blocks and block_bytes.
HitRatioRow run_hit_ratio(Params& experiment, const HitRatioTrace& trace, const std::function<void()>& each_turn = {});

}  // namespace kvlab
