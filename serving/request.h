#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// A live request of one replica: what schedulers see (RequestInfo), its memory, and its record so far.
struct Request : RequestInfo {
  std::uint64_t number = 0;  // position in the trace
  std::int64_t session = -1;
  Time queued = kNever, scheduled = kNever, first_token = kNever;
  Picoseconds last_token{-1};  // when its latest token came out; below 0: none yet
  const std::uint64_t* hashes = nullptr;
  std::int32_t hash_tokens = 0;
  std::int32_t num_hashes = 0;          // usable block hashes, prompt and output together
  std::int32_t trace_hashes = 0;        // entries of `hashes`
  std::int32_t published = 0;           // its first blocks that carry or share a hash
  std::int32_t publishable_tokens = 0;  // that blocks may be published of since it came in, hashed or not
  std::int32_t hit_tokens = 0;
  std::int32_t recomputed_tokens = 0;
  std::int32_t most_computed = 0;    // before the latest preemption
  std::int32_t kept_tokens = 0;      // once left_hashed: tokens that its pages hold, as tokens of a block
  std::int32_t row_tokens = 0;       // then also: tokens of its first row,
  std::int32_t pattern = 0;          // and how the others differ (SeqState)
  std::int64_t pages = 0;            // private pages it holds
  std::int64_t kept_pages = 0;       // of them once the step in flight is done
  std::int64_t swapped_blocks = 0;   // blocks' worth of CPU memory it holds
  std::int64_t reserved_start = -1;  // contiguous managers
  std::int32_t reserved_tokens = 0;
  bool left_hashed = false;
  bool was_admitted = false;
  bool is_counted = true;  // false: it arrived in the warm-up; its preemptions, hits and gaps between tokens are not recorded
  bool in_use = false;
  std::vector<BlockId> blocks;  // in order of its tokens
  // After a preemption: the full blocks it gave back whose content has no hash in the trace (those after `num_hashes`), each with its
  // count of takes, so that it finds the blocks again that no other request has overwritten.
  std::vector<std::pair<BlockId, std::uint32_t>> left_behind;
  std::vector<std::uint64_t> own_hashes;  // a copy, where the trace does not keep them

  [[nodiscard]] bool has_emitted() const { return last_token >= Picoseconds{}; }
  [[nodiscard]] std::int32_t known_values() const { return prompt_tokens + emitted_tokens; }
  [[nodiscard]] std::int32_t held_tokens() const { return left_hashed ? kept_tokens : computed_tokens; }
};

static_assert(sizeof(Request) <= 400, "traces of many millions of requests are held in part");

// Requests by slot; slots and the memory of their block lists are reused.
class RequestTable {
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
    outstanding_ -= left_of_prompt(r);
    r.computed_tokens = tokens;
    outstanding_ += left_of_prompt(r);
  }
  // Prompt tokens that are not computed yet, over all requests.
  [[nodiscard]] std::int64_t outstanding_prompt_tokens() const { return outstanding_; }

  Request& operator[](RequestId r) { return slots_[index(r)]; }
  const Request& operator[](RequestId r) const { return slots_[index(r)]; }
  [[nodiscard]] const std::vector<Request>& slots() const { return slots_; }
  [[nodiscard]] std::uint64_t live() const { return live_; }
  [[nodiscard]] std::uint64_t peak() const { return peak_; }

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
