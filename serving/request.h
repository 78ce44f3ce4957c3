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

// By slot; slots and their block lists are reused.
class SlotTable {
 public:
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

  Request& operator[](RequestId r) { return slots_[index(r)]; }
  const Request& operator[](RequestId r) const { return slots_[index(r)]; }
  [[nodiscard]] const std::vector<Request>& slots() const { return slots_; }
  [[nodiscard]] std::uint64_t peak() const { return peak_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }

 private:
  [[nodiscard]] static std::int32_t left_of_prompt(const Request& r) { return std::max(0, r.prompt_tokens - r.computed_tokens); }
  RequestId free_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      return RequestId{static_cast<std::uint32_t>(slots_.size() - 1)};
    }
    const RequestId r = free_.back();
    free_.pop_back();
    return r;
  }

  std::vector<Request> slots_;
  std::vector<RequestId> free_;
  std::uint64_t live_ = 0, peak_ = 0;
  std::int64_t outstanding_ = 0;
};

}  // namespace kvlab
