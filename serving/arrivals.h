#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/picoseconds.h"
#include "serving/host_setup.h"
#include "traces/trace.h"

namespace kvlab {

// Hands out a trace's requests as their time comes: roots in order of arrival (open loop) or as sessions end (closed loop),
// follow-up turns when the turn before them has finished.
class Arrivals {
 public:
  Arrivals(TraceSource& trace, const StopRule& stop);

  // When the next root arrives; kNoMore when the trace is over, or, in a closed loop, until a session ends.
  [[nodiscard]] Picoseconds next_root() const { return root_at_; }
  // Takes it. Its hashes stay valid until the call of forget_hashes() or follow_up() for it, its facts until that of follow_up().
  TraceRequest take_root();
  void forget_hashes(std::uint64_t number) { own_hashes_.erase(number); }

  // A request has left. True: a follow-up turn waited for it; it arrives at `arrives` under `index`.
  bool follow_up(std::uint64_t number, Picoseconds finished, Picoseconds& arrives, std::uint32_t& index);
  TraceRequest take_follow_up(std::uint32_t index);
  // A session is over (its last request finished or was refused): in a closed loop another one may begin.
  void session_ended(Picoseconds at);

  // Closed loop: the longest time with no request in progress; 0: any.
  [[nodiscard]] Picoseconds idle_cap() const { return idle_cap_; }
  // Requests that were taken and have not left.
  [[nodiscard]] std::uint64_t in_progress() const { return taken_ - left_; }
  // When the next session of a closed loop would begin, even if that is after the end of arrivals; kNoMore: none is left.
  [[nodiscard]] Picoseconds next_start() const { return has_root_ && !starts_.empty() ? starts_.front() : kNoMore; }
  // All sessions that have not begun come earlier by this, at most by next_start().
  void advance(Picoseconds by);

  [[nodiscard]] std::uint64_t taken() const { return taken_; }
  static constexpr Picoseconds kNoMore = Picoseconds::max();

 private:
  void read_ahead();  // the next root and the follow-ups after it
  bool read(TraceRequest& request);
  void release_root();

  TraceSource& trace_;
  StopRule stop_;
  bool has_root_ = false, has_ahead_ = false;
  TraceRequest root_, ahead_;
  std::deque<TraceRequest> root_turns_;
  std::unordered_map<std::uint64_t, std::deque<TraceRequest>> waiting_;  // by the number of the request they wait for
  std::vector<TraceRequest> due_;
  std::vector<std::uint32_t> free_due_;
  // Copies where the trace keeps none, by number: of requests that were read and have not left.
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> own_hashes_;
  std::unordered_map<std::uint64_t, RequestFacts> own_facts_;  // likewise
  Picoseconds root_at_ = kNoMore;
  std::int32_t concurrency_;
  std::uint64_t sessions_ = 0;
  std::vector<Picoseconds> starts_;  // closed loop: times at which a new session may begin, a heap
  Picoseconds idle_cap_;
  std::uint64_t next_number_ = 0, taken_ = 0, left_ = 0;
};

}  // namespace kvlab
