#include "serving/arrivals.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/time.h"

namespace kvlab {

namespace {

Picoseconds later(Picoseconds now, Span gap) {
  check_within_run(to_s(now) + to_s(gap));
  return now + to_ps(gap);
}

}  // namespace

Arrivals::Arrivals(TraceSource& trace, const StopRule& stop) : trace_(trace), stop_(stop), loop_(trace.closed_loop()) {
  for (std::int32_t user = 0; user < loop_.concurrency; ++user)
    starts_.push_back(later({}, Span(loop_.ramp.count() / loop_.concurrency * user)));  // ascending, hence a heap
  has_ahead_ = read(ahead_);
  if (has_ahead_ && ahead_.is_follow_up) throw InputError("the trace begins with a follow-up turn");
  read_ahead();
}

bool Arrivals::read(TraceRequest& request) {
  if (stop_.after_requests > 0 && next_number_ >= stop_.after_requests) return false;
  if (!trace_.next(request)) return false;
  request.number = next_number_++;
  if (trace_.keeps_hashes()) return true;
  if (request.facts != nullptr) request.facts = &(own_facts_[request.number] = *request.facts);
  if (request.hashes.empty()) return true;
  std::vector<std::uint64_t>& own = own_hashes_[request.number];
  own.assign(request.hashes.begin(), request.hashes.end());
  request.hashes = own;
  return true;
}

void Arrivals::read_ahead() {
  has_root_ = has_ahead_;
  root_turns_.clear();
  if (has_root_) {
    root_ = ahead_;
    while ((has_ahead_ = read(ahead_)) && ahead_.is_follow_up) root_turns_.push_back(ahead_);
  }
  release_root();
}

void Arrivals::release_root() {
  root_at_ = kNoMore;
  if (!has_root_) return;
  Picoseconds at;
  if (loop_.concurrency > 0) {
    if (starts_.empty()) return;
    at = starts_.front();
  } else {
    const Span arrival = root_.arrival - kStart;
    if (stop_.after_time.count() > 0 && arrival > stop_.after_time) return;
    at = later({}, arrival);
  }
  if (stop_.after_time.count() > 0 && at > to_ps(stop_.after_time)) return;
  root_at_ = at;
}

TraceRequest Arrivals::take_root() {
  if (loop_.concurrency > 0) {
    std::pop_heap(starts_.begin(), starts_.end(), std::greater<>{});
    starts_.pop_back();
    ++sessions_;
  }
  ++taken_;
  const TraceRequest request = root_;
  if (!root_turns_.empty()) waiting_.emplace(request.number, std::move(root_turns_));
  read_ahead();
  return request;
}

bool Arrivals::follow_up(std::uint64_t number, Picoseconds finished, Picoseconds& arrives, std::uint32_t& index) {
  ++left_;
  forget_hashes(number);
  if (!own_facts_.empty()) own_facts_.erase(number);
  if (waiting_.empty()) return false;
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return false;
  std::deque<TraceRequest> turns = std::move(found->second);
  waiting_.erase(found);
  if (free_due_.empty()) {
    free_due_.push_back(static_cast<std::uint32_t>(due_.size()));
    due_.emplace_back();
  }
  index = free_due_.back();
  free_due_.pop_back();
  due_[index] = turns.front();
  turns.pop_front();
  arrives = later(finished, due_[index].delay);
  if (!turns.empty()) waiting_.emplace(due_[index].number, std::move(turns));
  return true;
}

TraceRequest Arrivals::take_follow_up(std::uint32_t index) {
  ++taken_;
  free_due_.push_back(index);
  return due_[index];
}

void Arrivals::session_ended(Picoseconds at) {
  if (loop_.concurrency == 0) return;
  starts_.push_back(later(at, loop_.think_time(sessions_)));
  std::push_heap(starts_.begin(), starts_.end(), std::greater<>{});
  release_root();
}

void Arrivals::advance(Picoseconds by) {
  if (has_root_)
    for (Picoseconds& start : starts_) start = start - by;  // still a heap
  release_root();
}

}  // namespace kvlab
