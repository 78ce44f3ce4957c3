#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/request_facts.h"
#include "base/time.h"

namespace kvlab {

struct TraceRequest {
  Time arrival{};                  // from the trace's start; unused for follow-ups
  std::int32_t prompt_tokens = 0;  // >= 1
  std::int32_t output_tokens = 0;  // >= 1; only oracle schedulers look
  std::int64_t session = -1;       // -1: none
  // `delay` after the session's previous request finished, which directly precedes it.
  bool is_follow_up = false;
  Span delay{};
  // hashes[i] identifies tokens [0, (i + 1) * hash_tokens) of prompt and output; equal hashes mean equal prefixes. They may end before or
  // after the prompt (then generated tokens can be shared); the last may cover a partial prompt chunk (Mooncake). Empty: not shared.
  std::int32_t hash_tokens = 0;
  std::span<const std::uint64_t> hashes;
  // Null: none. Valid as `hashes`.
  const RequestFacts* facts = nullptr;
  std::uint64_t number = 0;  // in the trace, from 0; set by Arrivals
};

struct ClosedLoop {
  std::int32_t concurrency = 0;  // sessions at once; 0: open loop
  // Pause before session i replaces an ended one.
  std::function<Span(std::uint64_t session_index)> think_time = [](std::uint64_t) { return Span{0}; };
  Span ramp{};      // first sessions spread evenly over it
  Span idle_cap{};  // when idle, later arrivals move up so that the next comes at most this long after the last request left; 0: never
};

// Throws InputError beyond the longest run (base/picoseconds.h).
inline void check_within_run(double at_s) {
  if (at_s <= kLongestRunS) return;
  throw InputError(
      "the trace runs past 106 days (9.2e6 s), the longest run there is: ask for fewer requests or a higher rate_per_s, take a part of a "
      "file with offset and limit_requests, speed it up with arrival: {trace: {scale: ...}}, or end the run with stop: {after_s: ...}");
}

// In order of arrival.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // False at the end. `hashes` and `facts` are valid until the next call; with keeps_hashes() for the source's life. Throws InputError
  // (file:line, column).
  virtual bool next(TraceRequest& request) = 0;
  [[nodiscard]] virtual bool keeps_hashes() const { return false; }
  [[nodiscard]] virtual ClosedLoop closed_loop() const { return {}; }
  // At the user's request, with reasons.
  [[nodiscard]] virtual std::string skipped() const { return ""; }
  [[nodiscard]] virtual std::string remark() const { return ""; }
};

}  // namespace kvlab
