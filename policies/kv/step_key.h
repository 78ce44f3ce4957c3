#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace kvlab {

// With this step's tokens: [begin, end).
struct Lengths {
  std::int32_t begin = 0, end = 0;
  static constexpr Lengths all() { return {0, INT32_MAX}; }
  static constexpr Lengths only(std::int32_t len) { return {len, len + 1}; }
  // Around `len` with equally many whole blocks of `tokens` after `offset`; those that complete one are excluded if tokens > 1.
  static constexpr Lengths inside_block(std::int32_t len, std::int32_t tokens, std::int32_t offset = 0) {
    if (len <= offset) return {0, offset + 1};
    if (tokens == 1) return {offset + 1, INT32_MAX};
    const std::int32_t begin = offset + (len - offset) / tokens * tokens;
    return len == begin ? only(len) : Lengths{begin + 1, begin + tokens};
  }
  [[nodiscard]] constexpr Lengths within(const Lengths& o) const { return {begin < o.begin ? o.begin : begin, end < o.end ? end : o.end}; }
};

// Equal keys and row lengths give equal calls and bytes in decode.
class StepKey {
 public:
  static constexpr std::int64_t kForEver = INT32_MAX;
  // Constant for `steps` decode steps, with this one. Throws InternalError above kMost.
  void add(std::int32_t number, std::int64_t steps = 1) {
    if (size_ == kMost) throw InternalError("a step depends on more numbers than its key holds");
    numbers_[size_++] = number;
    if (steps < lasts_) lasts_ = steps;
  }
  void replace_last(std::int32_t number) { numbers_[size_ - 1] = number; }
  [[nodiscard]] std::int64_t lasts() const { return lasts_; }
  [[nodiscard]] std::size_t hash() const {
    std::uint64_t h = size_;
    for (std::size_t i = 0; i < size_; ++i) h = (h ^ static_cast<std::uint32_t>(numbers_[i])) * 0x9E3779B97F4A7C15ULL + (h >> 29);
    return h;
  }
  friend bool operator==(const StepKey& a, const StepKey& b) { return a.size_ == b.size_ && a.numbers_ == b.numbers_; }
  struct Hash {
    std::size_t operator()(const StepKey& key) const { return key.hash(); }
  };

 private:
  static constexpr std::size_t kMost = 20;
  std::array<std::int32_t, kMost> numbers_{};
  std::size_t size_ = 0;
  std::int64_t lasts_ = kForEver;
};

}  // namespace kvlab
