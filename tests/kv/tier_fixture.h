#pragma once

#include "tests/kv/selector_fixture.h"

namespace kvlab::test {

// A budget of the whole row attends to everything; so does set_budget.
inline bool large_budget_selects_everything(const std::string& part, const std::string& parameters, std::int32_t prompt = 40) {
  Decode d({4, 6, 2, 8, 16}, 2, prompt, 11);
  auto selector = make_part<SelectorRegistry>(part, parameters);
  selector->set_budget(10 * prompt);
  d.prefill(*selector);
  for (std::int32_t t = 0; t < 3; ++t)
    for (const auto& row : d.decode(*selector))
      if (static_cast<std::int32_t>(row.size()) != d.tokens()) return false;
  return true;
}

// How many of `now` are not in `before`.
inline std::int64_t newcomers(const std::vector<std::int32_t>& now, const std::vector<std::int32_t>& before) {
  std::vector<std::int32_t> out;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(out));
  return static_cast<std::int64_t>(out.size());
}

}  // namespace kvlab::test
