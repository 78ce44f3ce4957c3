#pragma once

#include <cstdint>
#include <map>

namespace kvlab {

// One contiguous range per request in an address space of tokens; first fit or best fit.
class ContiguousAllocator {
 public:
  enum class Fit : std::uint8_t { kFirst, kBest };
  ContiguousAllocator(std::int64_t capacity_tokens, Fit fit);

  // Start of the range; -1: no hole is large enough. length > 0.
  std::int64_t reserve(std::int64_t length);
  void release(std::int64_t start, std::int64_t length);

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t free_tokens() const { return free_; }
  [[nodiscard]] std::int64_t largest_hole() const;

 private:
  std::map<std::int64_t, std::int64_t> holes_;  // start -> length, never adjacent
  std::int64_t capacity_, free_;
  Fit fit_;
};

}  // namespace kvlab
