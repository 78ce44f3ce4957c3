#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/config/key_map.h"
#include "base/config/params.h"
#include "policies/block_cache/block_cache.h"
#include "traces/trace.h"

namespace kvlab {

// Lookups of a group's requests.
struct HitGroup {
  std::string kind, name;  // kind: class, client or turn; name: class, client number, or "first" and "later" turns
  std::uint64_t requests = 0, lookups = 0, hits = 0;  // of blocks, as in HitRatio
  std::int64_t hit_tokens = 0, prompt_tokens = 0;

  bool operator==(const HitGroup&) const = default;
};

// Groups of a trace's requests. A request has one per such column.
class HitGroups {
 public:
  // Adds the next request.
  void add(const TraceRequest& request);
  [[nodiscard]] bool is_empty() const { return groups_.empty(); }
  // Without lookups.
  [[nodiscard]] const std::vector<HitGroup>& groups() const { return groups_; }
  // Adds a request's lookups. groups: as groups().
  void count(std::size_t request, std::uint64_t lookups, std::uint64_t hits, std::vector<HitGroup>& groups) const;

 private:
  void join(const std::string& kind, const std::string& name, std::int32_t prompt_tokens);

  std::vector<HitGroup> groups_;
  std::unordered_map<std::string, std::uint32_t> places_;  // by kind and name
  std::vector<std::uint32_t> of_requests_;                 // groups of each request
  std::vector<std::uint64_t> begin_{0};                    // [requests + 1] into of_requests_
};

// Runs a block cache over a trace without time, requests in turn (docs/block-caches.md). Blocks before a request's first miss are *hits*,
// found later ones *orphans*. Missing blocks are inserted, over victims if none is blank; all stay referenced until the request's end.
// Blocks beyond `capacity_blocks` are misses.

// Contents `first` .. `first + count - 1`.
struct ContentRun {
  std::uint32_t first = 0, count = 0;
  bool operator==(const ContentRun&) const = default;
};

// Prompts as runs of contents: a block has the same number exactly if its prefix is the same. Numbers within a request differ.
struct HitRatioTrace {
  std::vector<ContentRun> runs;                 // in order
  std::vector<std::uint32_t> request_begin{0};  // [num_requests + 1] into runs
  std::uint32_t num_contents = 0;               // numbers are smaller
  std::uint64_t num_lookups = 0;                // blocks of all runs
  std::int32_t block_tokens = 16;
  std::int64_t prompt_tokens = 0;  // with unhashed and partial blocks
  HitGroups groups;

  [[nodiscard]] std::size_t num_requests() const { return request_begin.size() - 1; }
  // Replaces `contents` by those of the request.
  void chain(std::size_t request, std::vector<std::uint32_t>& contents) const;
};

// Numbers contents by first use.
class HitRatioTraceBuilder {
 public:
  explicit HitRatioTraceBuilder(std::int32_t block_tokens) { trace.block_tokens = block_tokens; }
  // Adds the full prompt blocks with content. Throws InputError for unfit block_tokens, repeated blocks, or beyond 2^32 - 3 blocks.
  void add(const TraceRequest& request);

  HitRatioTrace trace;

 private:
  struct Number {
    std::uint32_t first = 0xffffffffU;
    bool operator==(const Number&) const = default;
  };

  void check_distinct(std::span<const std::uint64_t> hashes);
  void add_blocks(const TraceRequest& request, std::uint32_t num_blocks);
  void append(std::uint64_t key, std::uint32_t parts, std::uint32_t count);

  KeyMap<Number> numbers_;  // by the key of a group of blocks
  std::vector<std::uint64_t> sorted_;
};

// Throws InputError without content hashes, and as HitRatioTraceBuilder. each_turn: called every few thousand requests; an exception ends
// the reading.
HitRatioTrace load_hit_ratio_trace(TraceSource& source, std::int32_t block_tokens, const std::function<void()>& each_turn = {});

struct HitRatio {
  std::uint64_t requests = 0;
  std::uint64_t lookups = 0;  // hits + orphans + insertions + beyond_capacity
  std::uint64_t hits = 0;
  std::uint64_t orphans = 0;  // resident after a miss
  std::uint64_t insertions = 0;
  std::uint64_t beyond_capacity = 0;  // in requests longer than the cache
  std::uint64_t evictions = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t prompt_tokens = 0;
  std::vector<HitGroup> groups = {};  // by first request; may be empty

  [[nodiscard]] std::uint64_t misses() const { return lookups - hits; }
  [[nodiscard]] double hit_frac() const { return lookups ? static_cast<double>(hits) / static_cast<double>(lookups) : 0; }
  [[nodiscard]] double token_hit_frac() const {
    return prompt_tokens ? static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens) : 0;
  }
  bool operator==(const HitRatio&) const = default;
};

// capacity_blocks >= 1; memory grows with the trace's contents. An oracle knows the trace's lookups. cost_s of every block is
// 0 (unknown). each_turn: as above.
HitRatio run_hit_ratio(BlockCache& cache, const HitRatioTrace& trace, std::uint32_t capacity_blocks,
                       const std::function<void()>& each_turn = {});

struct HitRatioRow {
  std::string cache;
  std::uint32_t capacity_blocks = 0;
  double capacity_gib = 0;  // 0: not known
  HitRatio result;
};

// One run of `kind: block_cache_mrc`: block_caches, capacity_blocks and block_bytes.
HitRatioRow run_hit_ratio(Params& experiment, const HitRatioTrace& trace, const std::function<void()>& each_turn = {});

}  // namespace kvlab
