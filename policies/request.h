#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "base/request_facts.h"
#include "base/time.h"

namespace kvlab {

enum class Outcome : std::uint8_t { kCompleted, kRejected, kUnfinished };

// kLastChance: one more late gap misses the target.
enum class GapState : std::uint8_t { kWithin, kLastChance, kMissed };

// A request's row of requests.csv. Times not reached are kNever.
struct RequestRecord {
  std::uint64_t number = 0;   // position in the trace, from 0
  std::int64_t session = -1;  // -1: none
  Time queued = kNever, scheduled = kNever, last_token = kNever;
  const char* reason = nullptr;
  const RequestFacts* facts = nullptr;  // null: not in the trace; valid until the record is handed out
  std::uint32_t replica = 0;
  std::int32_t hit_tokens = 0;
  std::int32_t preemptions = 0, recomputed_tokens = 0;
  // Wall time up to the first token, and after it. 0: not measured.
  Picoseconds prefill_policy{}, decode_policy{};
  Time arrival = kNever, first_token = kNever;
  Outcome outcome = Outcome::kUnfinished;
  bool is_counted = true;  // false: arrived in the warm-up
  GapState gaps = GapState::kWithin;
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  // processed by the host
};

// Schedulers' docs write c for computed_tokens and n for known_tokens().
struct Request : RequestRecord {
  // ---- read by schedulers ----
  std::int32_t output_limit = 0;      // for oracles and counting rows only
  std::int32_t in_flight_tokens = 0;  // planned, not processed: values unknown
  std::int32_t computed_tokens = 0;   // c: counted when a step is planned
  std::int32_t in_flight_steps = 0;
  bool is_running = false;
  bool is_swapped = false;  // computed_tokens still counts
  bool is_parked = false;   // transfer under way
  [[nodiscard]] std::int32_t known_values() const { return prompt_tokens + output_tokens; }
  [[nodiscard]] std::int32_t known_tokens() const { return known_values() + in_flight_tokens; }
  [[nodiscard]] bool is_prefilling() const { return computed_tokens < known_values(); }

  // ---- of the replica ----
  bool left_hashed = false;
  Picoseconds last_emitted{-1};  // below 0: none
  std::int32_t kept_tokens = 0;  // once left_hashed
  std::int32_t most_computed = 0;
  std::int32_t num_hashes = 0;  // usable block hashes
  std::int32_t published = 0;
  std::int32_t publishable_tokens = 0;
  std::int32_t hash_tokens = 0;
  std::vector<BlockId> blocks;  // in token order
  std::span<const std::uint64_t> hashes;
  std::int32_t row_tokens = 0;  // once left_hashed: tokens of its first row,
  std::int32_t pattern = 0;     // and how the others differ (SeqState)
  std::int64_t pages = 0;
  std::int64_t kept_pages = 0;  // after the step in flight
  std::int64_t swapped_blocks = 0;
  std::int64_t reserved_start = -1;  // contiguous managers
  std::int32_t reserved_tokens = 0;
  bool was_admitted = false;
  bool in_use = false;
  bool is_leaving = false;  // keeps its blocks until the copy ends
  bool is_paused = false;   // waits and keeps its blocks (Preemption::kKeep)
  // Full blocks returned by a preemption that have no hash in the trace, with their counts of takes: reused if not overwritten.
  std::vector<std::pair<BlockId, std::uint32_t>> left_behind;

  [[nodiscard]] bool has_emitted() const { return last_emitted >= Picoseconds{}; }
  [[nodiscard]] std::int32_t held_tokens() const { return left_hashed ? kept_tokens : computed_tokens; }
};

static_assert(sizeof(Request) <= 280, "traces of many millions of requests are held in part");

}  // namespace kvlab
