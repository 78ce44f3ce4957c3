#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "policies/request.h"
#include "traces/trace.h"

namespace kvlab {

// Without times.
inline TraceRequest trace_request_of(const Request& r) {
  TraceRequest content;
  content.number = r.number;
  content.session = r.session;
  content.prompt_tokens = r.prompt_tokens;
  content.output_tokens = r.output_limit;
  content.hash_tokens = r.hash_tokens;
  content.hashes = r.hashes;
  content.facts = r.facts;
  return content;
}

// Steps of a rank, numbered from 1.
struct StepClock {
  std::int64_t planned = 0, output = 0;  // the latest
  std::int64_t valued = 0;               // output before the latest plan
  Picoseconds last_output{};
};

// By slot; slots and their block lists are reused. A request may follow the clock: it computes and emits a token per step, and its counts
// are written when it is read.
class SlotTable {
 public:
  [[nodiscard]] StepClock& clock() { return clock_; }
  [[nodiscard]] const StepClock& clock() const { return clock_; }
  // From the step after the latest planned one to step `last`.
  void follow(RequestId r, std::int64_t last) {
    followed_[index(r)] = {clock_.planned, clock_.planned, last};
    follows_[index(r)] = 1;
  }
  // For fields that do not follow steps.
  Request& without_counts(RequestId r) { return slots_[index(r)]; }
  // Its counts are written.
  void unfollow(RequestId r) {
    (*this)[r];
    follows_[index(r)] = 0;
  }

  RequestId add(std::int32_t prompt_tokens) {
    ++live_;
    if (live_ > peak_) peak_ = live_;
    const RequestId r = free_slot();
    (*this)[r].in_use = true;
    (*this)[r].prompt_tokens = prompt_tokens;
    outstanding_ += prompt_tokens;
    return r;
  }
  void remove(RequestId r) {
    --live_;
    Request& old = (*this)[r];
    outstanding_ -= left_of_prompt(old);
    Request blank;
    blank.blocks = std::move(old.blocks);
    blank.blocks.clear();
    old = std::move(blank);
    free_.push_back(r);
  }
  void set_computed(Request& r, std::int32_t tokens) {
    if (std::min(tokens, r.computed_tokens) >= r.prompt_tokens) {
      r.computed_tokens = tokens;
      return;
    }
    outstanding_ -= left_of_prompt(r);
    r.computed_tokens = tokens;
    outstanding_ += left_of_prompt(r);
  }
  // Uncomputed prompt tokens, over all requests.
  [[nodiscard]] std::int64_t outstanding_prompt_tokens() const { return outstanding_; }

  Request& operator[](RequestId r) {
    if (follows_[index(r)] != 0) catch_up(index(r));
    return slots_[index(r)];
  }
  const Request& operator[](RequestId r) const { return const_cast<SlotTable&>(*this)[r]; }
  // O(slots): writes all counts first.
  [[nodiscard]] const std::vector<Request>& slots() const {
    for (std::uint32_t i = 0; i < slots_.size(); ++i) (*this)[RequestId{i}];
    return slots_;
  }
  [[nodiscard]] std::uint64_t peak() const { return peak_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }

 private:
  [[nodiscard]] static std::int32_t left_of_prompt(const Request& r) { return std::max(0, r.prompt_tokens - r.computed_tokens); }
  RequestId free_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      follows_.push_back(0);
      followed_.emplace_back();
      return RequestId{static_cast<std::uint32_t>(slots_.size() - 1)};
    }
    const RequestId r = free_.back();
    free_.pop_back();
    return r;
  }

  struct Followed {
    std::int64_t planned = 0, output = 0;  // counted, of the clock
    std::int64_t last = 0;
  };
  void catch_up(std::uint32_t slot) {
    Request& r = slots_[slot];
    Followed& done = followed_[slot];
    const std::int64_t planned = std::min(clock_.planned, done.last), output = std::max(clock_.output, done.output);
    const auto computed = static_cast<std::int32_t>(planned - done.planned), emitted = static_cast<std::int32_t>(output - done.output);
    done = {planned, output, done.last};
    r.computed_tokens += computed;
    r.output_tokens += emitted;
    r.in_flight_tokens += computed - emitted;
    r.in_flight_steps += computed - emitted;
    if (emitted > 0) r.last_emitted = clock_.last_output;
    // Tokens with values at the latest plan, and now.
    const std::int64_t before = r.computed_tokens - planned;
    if (computed > 0) r.publishable_tokens = std::max(r.publishable_tokens, static_cast<std::int32_t>(before + clock_.valued + 1));
    if (emitted > 0) r.publishable_tokens = std::max(r.publishable_tokens, static_cast<std::int32_t>(before + output));
  }

  StepClock clock_;
  std::vector<Request> slots_;
  std::vector<std::uint8_t> follows_;
  std::vector<Followed> followed_;
  std::vector<RequestId> free_;
  std::uint64_t live_ = 0, peak_ = 0;
  std::int64_t outstanding_ = 0;
};

}  // namespace kvlab
