#pragma once

#include <cstdint>

namespace kvlab {

// Tokens that a policy may keep.
struct Budget {
  std::int32_t tokens = 0;  // 0: none given
  double frac = 0;          // of the prompt; 0: none given
  bool truncates = true;    // tokens of a fraction: int(n * frac), else rounded half to even
  double dropped = -1;      // the share of the prompt that is removed, as the experiment gives it; below 0: 1 - frac
  [[nodiscard]] double dropped_frac() const { return dropped < 0 ? 1 - frac : dropped; }
  // Tokens per KV head of a sequence with this prompt; of a share at least one.
  [[nodiscard]] std::int32_t of(std::int32_t prompt_tokens) const;
};

// Tokens that always stay: the first ones, and the last before the sequence's end.
struct Protected {
  std::int32_t sinks = 0, recent = 0;
  bool prompt = false;      // all that remains of the prompt
  double recent_frac = 0;   // more of the last: this share of what the row keeps, rounded down
  std::int32_t before = 0;  // all that remains before this position
  [[nodiscard]] std::int32_t recent_of(std::int32_t kept_tokens) const {
    return recent + static_cast<std::int32_t>(recent_frac * kept_tokens);
  }
};

}  // namespace kvlab
