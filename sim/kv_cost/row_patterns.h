#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace kvlab {

// Numbers the ways in which rows (KV heads of layers) differ in length. runs() and number_of() carry a pattern to another footprint.
class RowPatterns {
 public:
  static constexpr std::int32_t kAlike = 0;  // equal rows

  // tokens: the first row that lost some, or all.
  struct Rows {
    std::int32_t tokens = 0, pattern = kAlike;
  };
  // held [num_layers * kv_heads]; end: tokens seen.
  Rows note(std::span<const std::int32_t> held, std::int32_t end);
  // One value if equal.
  [[nodiscard]] std::vector<std::int32_t> lengths(const Rows& rows, std::int32_t seen) const;
  // Some rows lost nothing.
  [[nodiscard]] bool has_whole(std::int32_t pattern) const { return of(pattern).has_whole; }

  // Empty: kAlike.
  [[nodiscard]] const std::vector<std::int32_t>& runs(std::int32_t pattern) const { return of(pattern).runs; }
  std::int32_t number_of(const std::vector<std::int32_t>& runs);

 private:
  static constexpr std::int32_t kWhole = -1 << 30;
  // Tokens minus the first row's that lost some; kWhole for whole rows, so a pattern lasts as these grow.
  struct Pattern {
    std::vector<std::int32_t> runs;  // by runs_of(): one pattern per prompt length
    bool has_whole = false;
  };
  [[nodiscard]] const Pattern& of(std::int32_t pattern) const { return patterns_[static_cast<std::size_t>(pattern)]; }

  std::vector<Pattern> patterns_{1};
  std::map<std::vector<std::int32_t>, std::int32_t> numbers_;
};

}  // namespace kvlab
