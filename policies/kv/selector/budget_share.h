#pragma once

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

}  // namespace kvlab
