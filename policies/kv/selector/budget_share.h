#pragma once

#include <algorithm>
#include <cstdint>

#include "policies/kv/selector/selection.h"

namespace kvlab {

// A selector whose budget may be a share of each prompt.
class TakesShare {
 public:
  virtual ~TakesShare() = default;
  // In the place of Selector::set_budget(): `share` has no tokens.
  virtual void set_share(const Budget& share) = 0;
};

inline bool is_given(const Budget& budget) { return budget.tokens > 0 || budget.frac > 0; }

// The budget of a row's sequence, in tokens.
inline std::int32_t tokens_of(const Budget& budget, const LayerStep& step, std::int32_t row) {
  return budget.of(seq_of(step, row).prompt_tokens);
}

// Tokens of a row that are attended to: its first, its latest, and the chosen ones.
struct AttendedParts {
  std::int32_t sinks, recent, top;
};

// The selector's own parts where no budget is given; else at most a quarter of its tokens are first and half are latest ones.
inline AttendedParts parts_of(const AttendedParts& own, const Budget& given, std::int32_t tokens) {
  if (!is_given(given)) return own;
  const std::int32_t sinks = std::min(own.sinks, tokens / 4), recent = std::min(own.recent, std::max(1, tokens / 2));
  return {sinks, recent, std::max(0, tokens - sinks - recent)};
}

}  // namespace kvlab
