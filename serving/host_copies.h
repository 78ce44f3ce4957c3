#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace kvlab {

// KV copies in CPU memory that no swapped request holds, oldest first: of requests that came back, and of turns that ended, for the
// session's next turn (FastSwitch, Shen et al. 2024, arXiv:2411.18424). Sizes in blocks.
class HostCopies {
 public:
  struct Copy {
    RequestId request = kNoRequest;     // that came back; none: of a turn
    std::int64_t session = -1;          // of the turn
    std::int64_t blocks = 0;            // CPU memory
    std::int64_t full = 0;              // leading valid blocks
    std::vector<std::uint64_t> keys{};  // of a turn: content of the valid blocks
  };

  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  [[nodiscard]] const std::list<Copy>& all() const { return copies_; }
  void add(Copy copy);
  std::optional<Copy> take(RequestId r);
  // Takes out the copy of the session's latest turn; valid are its leading blocks with the content of `keys`, from the new turn.
  std::optional<Copy> take_turn(std::int64_t session, std::span<const std::uint64_t> keys);
  // r ends: copies of its first blocks, with content `keys`, replace those of the turn before. Returns the freed blocks of CPU memory.
  std::int64_t keep_turn(RequestId r, std::int64_t session, std::span<const std::uint64_t> keys);
  // Returns the freed blocks; 0: no copy.
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
