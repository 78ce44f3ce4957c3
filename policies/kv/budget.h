#pragma once

#include <cstdint>

namespace kvlab {

struct Budget {
  std::int32_t tokens = 0;  // 0: not given
  double frac = 0;          // share of the prompt; 0: not given
  bool truncates = true;    // frac * n rounds down, else half to even
  double dropped = -1;      // of the prompt, as given; < 0: 1 - frac
  [[nodiscard]] double dropped_frac() const { return dropped < 0 ? 1 - frac : dropped; }
  // Tokens per KV head; >= 1 for a share.
  [[nodiscard]] std::int32_t of(std::int32_t prompt_tokens) const;
};

// Never evicted.
struct Protected {
  std::int32_t sinks = 0, recent = 0;
  bool prompt = false;      // all that is left of the prompt
  double recent_frac = 0;   // share of a row's kept tokens added to `recent`, rounded down
  std::int32_t before = 0;  // all that is left before this position
  [[nodiscard]] std::int32_t recent_of(std::int32_t kept_tokens) const {
    return recent + static_cast<std::int32_t>(recent_frac * kept_tokens);
  }
};

}  // namespace kvlab
