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

// How the gaps between a request's tokens compare with its target: it holds whatever the next gap is; one more late gap misses it; it is
// missed, however the request continues. kWithin without a target.
enum class GapState : std::uint8_t { kWithin, kLastChance, kMissed };

// Facts and times of a request, from its arrival on: once it has left, its row of requests.csv. Times it has not reached are kNever. The
// members that every step reads are the last ones.
struct RequestRecord {
  std::uint64_t number = 0;   // position in the trace, from 0
  std::int64_t session = -1;  // -1: none
  Time queued = kNever, scheduled = kNever, last_token = kNever;
  const char* reason = nullptr;         // why it was rejected
  const RequestFacts* facts = nullptr;  // null: the trace gives it none; valid until its record has been handed out
  std::uint32_t replica = 0;
  std::int32_t hit_tokens = 0;  // of its first admission
  std::int32_t preemptions = 0, recomputed_tokens = 0;
  // Wall time of the KV policy's work in its steps, those whose output came while it ran: up to the first token, and after it. 0 where the
  // device does not know it.
  Picoseconds prefill_policy{}, decode_policy{};
  Time arrival = kNever, first_token = kNever;
  Outcome outcome = Outcome::kUnfinished;
  bool is_counted = true;  // false: it arrived in the warm-up; its preemptions, hits and gaps between tokens are not recorded
  GapState gaps = GapState::kWithin;
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  // emitted so far: output processed by the host
};

// A live request of one replica. The cards of schedulers write c for computed_tokens and n for known_tokens().
struct Request : RequestRecord {
  // ---- read by schedulers ----
  std::int32_t output_limit = 0;      // tokens it will emit in all: for oracles and for counting rows only
  std::int32_t in_flight_tokens = 0;  // emissions of steps planned and not yet processed: known to come, without value
  std::int32_t computed_tokens = 0;   // c: counted when a step is planned, not when it ends
  std::int32_t in_flight_steps = 0;   // planned steps that hold tokens of this request
  bool is_running = false;
  bool is_swapped = false;  // its KV is in host memory; computed_tokens still counts
  bool is_parked = false;   // its transfer is under way
  [[nodiscard]] std::int32_t known_values() const { return prompt_tokens + output_tokens; }
  [[nodiscard]] std::int32_t known_tokens() const { return known_values() + in_flight_tokens; }
  [[nodiscard]] bool is_prefilling() const { return computed_tokens < known_values(); }

  // ---- of the replica: its memory. Members that every step reads come first ----
  bool left_hashed = false;
  Picoseconds last_emitted{-1};         // when its latest token came out; below 0: none yet
  std::int32_t kept_tokens = 0;         // once left_hashed: tokens that its pages hold, as tokens of a block
  std::int32_t most_computed = 0;       // before the latest preemption
  std::int32_t num_hashes = 0;          // usable block hashes, prompt and output together
  std::int32_t published = 0;           // its first blocks that carry or share a hash
  std::int32_t publishable_tokens = 0;  // that blocks may be published of since it came in, hashed or not
  std::int32_t hash_tokens = 0;
  std::vector<BlockId> blocks;            // in order of its tokens
  std::span<const std::uint64_t> hashes;  // of the trace
  std::int32_t row_tokens = 0;            // once left_hashed: tokens of its first row,
  std::int32_t pattern = 0;               // and how the others differ (SeqState)
  std::int64_t pages = 0;                 // private pages it holds
  std::int64_t kept_pages = 0;            // of them once the step in flight is done
  std::int64_t swapped_blocks = 0;        // blocks' worth of CPU memory it holds
  std::int64_t reserved_start = -1;       // contiguous managers
  std::int32_t reserved_tokens = 0;
  bool was_admitted = false;
  bool in_use = false;
  bool is_leaving = false;  // parked, on the way to host memory: its blocks are its own until the copy ends; read by orders as well
  bool is_paused = false;   // it waits and keeps its blocks (Preemption::kKeep); read by orders as well
  // After a preemption: the full blocks it gave back whose content has no hash in the trace (those after `num_hashes`), each with its
  // count of takes, so that it finds the blocks again that no other request has overwritten.
  std::vector<std::pair<BlockId, std::uint32_t>> left_behind;

  [[nodiscard]] bool has_emitted() const { return last_emitted >= Picoseconds{}; }
  [[nodiscard]] std::int32_t held_tokens() const { return left_hashed ? kept_tokens : computed_tokens; }
};

static_assert(sizeof(Request) <= 280, "traces of many millions of requests are held in part");

}  // namespace kvlab
