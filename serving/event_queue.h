#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/picoseconds.h"

namespace kvlab {

// Order inside one instant: outputs before dispatch to the next stage, then all arrivals, then plans, then samples.
enum class Phase : std::uint8_t { kComplete, kDispatch, kArrive, kSchedule, kSample };

enum class EventKind : std::uint8_t {
  kOutput,
  kSwapEnd,
  kImportEnd,
  kStoreEnd,
  kEncodeEnd,
  kAsk,
  kTimer,
  kFollowUp,
  kEncoded,
  kEmbedded,
  kPlan,
  kSample
};

struct Event {
  Picoseconds at{};
  std::uint64_t seq = 0;      // push order, for ties of one replica
  std::uint32_t replica = 0;  // a rank, over all replicas
  std::uint32_t subject = 0;  // a request slot or index; for kOutput and kPlan a generation
  Phase phase{};
  EventKind kind{};

  // Most pairs differ in time.
  [[nodiscard]] bool is_after(const Event& other) const {
    if (at != other.at) [[likely]]
      return at > other.at;
    return std::tie(phase, replica, seq) > std::tie(other.phase, other.replica, other.seq);
  }
};

// A binary heap. Only the first event is removed; stale events have an old generation.
class EventQueue {
 public:
  void push(Picoseconds at, Phase phase, EventKind kind, std::uint32_t replica, std::uint32_t subject) {
    heap_.push_back({at, next_seq_++, replica, subject, phase, kind});
    std::push_heap(heap_.begin(), heap_.end(), kLater);
  }
  [[nodiscard]] bool is_empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  [[nodiscard]] const Event& top() const { return heap_.front(); }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), kLater);
    const Event first = heap_.back();
    heap_.pop_back();
    return first;
  }
  // Picoseconds::max() if none. O(size).
  [[nodiscard]] Picoseconds first_of(EventKind kind) const {
    Picoseconds first = Picoseconds::max();
    for (const Event& event : heap_)
      if (event.kind == kind) first = std::min(first, event.at);
    return first;
  }
  // All events of `kind` move earlier.
  void advance(EventKind kind, Picoseconds by) {
    for (Event& event : heap_)
      if (event.kind == kind) event.at = event.at - by;
    std::make_heap(heap_.begin(), heap_.end(), kLater);
  }

 private:
  static constexpr auto kLater = [](const Event& a, const Event& b) { return a.is_after(b); };
  std::vector<Event> heap_;
  std::uint64_t next_seq_ = 0;
};

}  // namespace kvlab
