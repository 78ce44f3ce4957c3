#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"

namespace kvlab {

// Copies to CPU memory that run during steps (SwapSetup::Overlap). Their blocks are already free in the pool; a step that gets one waits
// for its copy.
class CopiesOut {
 public:
  // A copy of these blocks of r ends at `end`.
  void begin(RequestId r, std::span<const BlockId> blocks, Picoseconds end) {
    at(of_request_, index(r)) = end;
    for (const BlockId block : blocks) at(of_block_, index(block)) = end;  // copies are serial: the latest ends last
    last_ = std::max(last_, end);
  }
  // r was copied out without overlap.
  void forget(RequestId r) {
    if (index(r) < of_request_.size()) of_request_[index(r)] = {};
  }
  // The end of r's latest copy, before which it cannot come back. Zero: no overlapped copy.
  [[nodiscard]] Picoseconds end_of(RequestId r) const { return index(r) < of_request_.size() ? of_request_[index(r)] : Picoseconds{}; }
  // When all of these blocks are writable.
  [[nodiscard]] Picoseconds free_at(std::span<const BlockId> blocks) const {
    Picoseconds free;
    for (const BlockId block : blocks)
      if (index(block) < of_block_.size()) free = std::max(free, of_block_[index(block)]);
    return free;
  }
  [[nodiscard]] Picoseconds last() const { return last_; }

 private:
  static Picoseconds& at(std::vector<Picoseconds>& ends, std::size_t i) {
    if (ends.size() <= i) ends.resize(i + 1);
    return ends[i];
  }
  std::vector<Picoseconds> of_request_, of_block_;  // by slot, by block
  Picoseconds last_;
};

}  // namespace kvlab
