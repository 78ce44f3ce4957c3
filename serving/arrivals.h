#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/picoseconds.h"
#include "serving/host_setup.h"
#include "traces/trace.h"

namespace kvlab {

// Requests of a trace in time: roots by arrival (open loop) or as sessions end (closed loop), follow-up turns later.
class Arrivals {
 public:
  Arrivals(TraceSource& trace, const StopRule& stop);

  // kNoMore: none is left or, in a closed loop, until a session ends.
  [[nodiscard]] Picoseconds next_root() const { return root_at_; }
  // Its hashes stay valid until forget_hashes() or follow_up() for it, its facts until follow_up().
  TraceRequest take_root();
  void forget_hashes(std::uint64_t number) { own_hashes_.erase(number); }

  // A request has left. True: its follow-up turn arrives at `arrives` under `index`.
  bool follow_up(std::uint64_t number, Picoseconds finished, Picoseconds& arrives, std::uint32_t& index);
  TraceRequest take_follow_up(std::uint32_t index);
  // A closed loop may begin another.
  void session_ended(Picoseconds at);

  // Closed loop: maximum time without requests; 0: unlimited.
  [[nodiscard]] Picoseconds idle_cap() const { return to_ps(loop_.idle_cap); }
  [[nodiscard]] std::uint64_t in_progress() const { return taken_ - left_; }
  // For a closed loop, even after the end of arrivals; kNoMore: none.
  [[nodiscard]] Picoseconds next_start() const { return has_root_ && !starts_.empty() ? starts_.front() : kNoMore; }
  // Moves all further session starts earlier, at most by next_start().
  void advance(Picoseconds by);

  [[nodiscard]] std::uint64_t taken() const { return taken_; }
  static constexpr Picoseconds kNoMore = Picoseconds::max();

 private:
  void read_ahead();  // the next root and its follow-ups
  bool read(TraceRequest& request);
  void release_root();

  TraceSource& trace_;
  StopRule stop_;
  bool has_root_ = false, has_ahead_ = false;
  TraceRequest root_, ahead_;
  std::deque<TraceRequest> root_turns_;
  std::unordered_map<std::uint64_t, std::deque<TraceRequest>> waiting_;  // by the number of the request before
  std::vector<TraceRequest> due_;
  std::vector<std::uint32_t> free_due_;
  // If the trace keeps none, by number: for requests that were read and have not left.
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> own_hashes_;
  std::unordered_map<std::uint64_t, RequestFacts> own_facts_;
  Picoseconds root_at_ = kNoMore;
  ClosedLoop loop_;
  std::uint64_t sessions_ = 0;
  std::vector<Picoseconds> starts_;  // closed loop: possible session starts, a heap
  std::uint64_t next_number_ = 0, taken_ = 0, left_ = 0;
};

}  // namespace kvlab
