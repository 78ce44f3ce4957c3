#pragma once

#include <algorithm>
#include <cstdint>

#include "policies/kv/selector/selection.h"

namespace kvlab {

inline bool is_given(const Budget& budget) { return budget.tokens > 0 || budget.frac > 0; }

inline std::int32_t tokens_of(const Budget& budget, const LayerStep& step, std::int32_t row) {
  return budget.of(seq_of(step, row).prompt_tokens);
}

struct AttendedParts {
  std::int32_t sinks, recent, top;
};

// `own` if no budget is given; otherwise at most 1/4 first and 1/2 latest tokens.
inline AttendedParts parts_of(const AttendedParts& own, const Budget& given, std::int32_t tokens) {
  if (!is_given(given)) return own;
  const std::int32_t sinks = std::min(own.sinks, tokens / 4), recent = std::min(own.recent, std::max(1, tokens / 2));
  return {sinks, recent, std::max(0, tokens - sinks - recent)};
}

template <class Base>
class Budgeted : public Base {
 public:
  [[nodiscard]] bool takes_budget() const final { return true; }
  void set_budget(const Budget& budget) final { budget_ = budget, is_set_ = true; }

 protected:
  explicit Budgeted(const Budget& own = {}) : budget_(own) {}
  Budget budget_;  // the experiment's or the selector's own; not given: other parameters apply
  bool is_set_ = false;
};

}  // namespace kvlab
