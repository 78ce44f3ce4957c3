#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace kvlab {

// Copies of KV in CPU memory that no swapped request holds, the oldest first: those of requests that came back, and those of turns that
// ended, for the next turn of the session (FastSwitch, Shen et al. 2024, arXiv:2411.18424). Sizes in blocks.
class HostCopies {
 public:
  struct Copy {
    RequestId request = kNoRequest;     // that came back; none: of a turn that ended
    std::int64_t session = -1;          // of that turn
    std::int64_t blocks = 0;            // CPU memory
    std::int64_t full = 0;              // its first blocks, whose copies are valid
    std::vector<std::uint64_t> keys{};  // of a turn: the content of the valid blocks
  };

  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  [[nodiscard]] const std::list<Copy>& all() const { return copies_; }
  void add(Copy copy);
  // Takes the copy of request r out.
  std::optional<Copy> take(RequestId r);
  // Takes the copy of the session's latest turn out. Valid are the blocks whose content is that of `keys`, the first blocks of the new
  // turn.
  std::optional<Copy> take_turn(std::int64_t session, std::span<const std::uint64_t> keys);
  // r ends: the copies of its first blocks, with the content of `keys`, stay for the session's next turn, in place of those of the turn
  // before. Returns the blocks of CPU memory that come free.
  std::int64_t keep_turn(RequestId r, std::int64_t session, std::span<const std::uint64_t> keys);
  // Drops the oldest copy; returns its blocks, 0: there is none.
  std::int64_t give_up_oldest();

 private:
  using Place = std::list<Copy>::iterator;
  Copy take_out(Place at);

  std::list<Copy> copies_;
  std::unordered_map<std::uint32_t, Place> by_request_;
  std::unordered_map<std::int64_t, Place> by_session_;
  std::int64_t blocks_ = 0;
};

}  // namespace kvlab
