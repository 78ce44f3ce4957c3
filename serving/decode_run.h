#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/kv/footprint.h"
#include "policies/request.h"

namespace kvlab {

// Known decode steps of a request, with equal rows or a lasting pattern.
class DecodeRun {
 public:
  // The next step of `r`; null: not known.
  [[nodiscard]] const FootprintStep* find(const Request& r) const {
    const auto i = static_cast<std::size_t>(r.computed_tokens - from_.seen_tokens);
    if (i >= steps_.size() || r.prompt_tokens != from_.prompt_tokens || r.left_hashed != from_.left_hashed) return nullptr;
    if (r.computed_tokens < r.most_computed) return nullptr;
    const std::int32_t held = i == 0 ? from_.held_tokens : steps_[i - 1].held_tokens;
    return !r.left_hashed || (r.row_tokens == held && r.pattern == from_.pattern) ? &steps_[i] : nullptr;
  }
  // Step i (from 0) after the computed tokens.
  [[nodiscard]] const FootprintStep& step(const Request& r, std::int64_t i) const {
    return steps_[static_cast<std::size_t>(r.computed_tokens - from_.seen_tokens + i)];
  }
  // From `now`, the state of `r`: at least `least` steps and at most `most`, if there are as many.
  std::span<const FootprintStep> extend(const Request& r, const SeqState& now, std::int64_t least, std::int64_t most, Footprint& footprint);

 private:
  SeqState from_;
  std::vector<FootprintStep> steps_;
};

}  // namespace kvlab
