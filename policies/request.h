#pragma once

#include <cstdint>

#include "base/time.h"

namespace kvlab {

enum class Outcome : std::uint8_t { kCompleted, kRejected, kUnfinished };

// Facts and times of a request, from its arrival on: once it has left, its row of requests.csv. Times it has not reached are kNever. The
// members that every step reads are the last ones.
struct RequestRecord {
  std::uint64_t number = 0;    // position in the trace, from 0
  std::int64_t session = -1;   // -1: none
  Time queued = kNever, scheduled = kNever, last_token = kNever;
  const char* reason = nullptr;  // why it was rejected
  std::uint32_t replica = 0;
  std::int32_t hit_tokens = 0;  // of its first admission
  std::int32_t preemptions = 0, recomputed_tokens = 0;
  Time arrival = kNever, first_token = kNever;
  Outcome outcome = Outcome::kUnfinished;
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  // emitted so far: output processed by the host
};

// A live request as its scheduler reads it. The cards write c for computed_tokens and n for known_tokens().
struct RequestInfo : RequestRecord {
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
};

}  // namespace kvlab
