#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/request_facts.h"
#include "base/time.h"

namespace kvlab {

// One request of a trace, as readers and generators produce it and hosts consume it.
struct TraceRequest {
  Time arrival{};                  // open loop: when it reaches the router, from the start of the trace. A follow-up has none.
  std::int32_t prompt_tokens = 0;  // >= 1
  std::int32_t output_tokens = 0;  // >= 1: tokens it will emit; schedulers other than oracles do not look
  std::int64_t session = -1;       // requests of one conversation or agent share it; -1: none
  // A follow-up turn arrives `delay` after the request of the same session before it in the trace has finished. It follows that request
  // directly in the trace.
  bool is_follow_up = false;
  Span delay{};
  // Content: hashes[i] identifies tokens [0, (i + 1) * hash_tokens) of prompt and output together, so equal hashes mean equal prefixes. May
  // end before, at or after the prompt's end (then generated tokens can be shared as well); a last hash may cover a partial chunk of the
  // prompt (Mooncake). Empty: content unknown, nothing is ever shared.
  std::int32_t hash_tokens = 0;
  std::span<const std::uint64_t> hashes;
  // Optional columns; null: the request has none. Valid as long as `hashes`.
  const RequestFacts* facts = nullptr;
  std::uint64_t number = 0;  // position in the trace, from 0; counted by Arrivals
};

// A trace as a stream in order of arrival, so that its length does not matter for memory.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // False at the end. `hashes` and `facts` point into memory of the source: until the next call, or for the life of the source when
  // keeps_hashes(). Throws InputError (file:line, column name) on a row that cannot be used.
  virtual bool next(TraceRequest& request) = 0;
  [[nodiscard]] virtual bool keeps_hashes() const { return false; }
  // Closed loop: at most this many sessions are in progress; the next one arrives `think` after one ends. 0: open loop,
  // arrivals as given.
  [[nodiscard]] virtual std::int32_t concurrency() const { return 0; }
  [[nodiscard]] virtual Span think_time(std::uint64_t /*session_index*/) const { return Span{0}; }
  // Closed loop: the first sessions, one for each user, start evenly over this time. 0: all start at once.
  [[nodiscard]] virtual Span ramp() const { return Span{0}; }
  // Closed loop: when no request is in progress, all arrivals to come move earlier together, so that the next one comes at most this long
  // after the last request has left. 0: they do not move.
  [[nodiscard]] virtual Span idle_cap() const { return Span{0}; }
  // Rows passed over on request of the user (failed requests of BurstGPT, ...), with the reason, for the result's record.
  [[nodiscard]] virtual std::string skipped() const { return ""; }
  // A remark on rows read so far that look wrong, for the result's record; "" where none does.
  [[nodiscard]] virtual std::string remark() const { return ""; }
};

}  // namespace kvlab
