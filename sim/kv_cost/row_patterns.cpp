#include "sim/kv_cost/row_patterns.h"

#include <algorithm>

#include "policies/kv/runs_of.h"

namespace kvlab {

RowPatterns::Rows RowPatterns::note(std::span<const std::int32_t> held, std::int32_t end) {
  const auto cut = std::find_if(held.begin(), held.end(), [end](std::int32_t h) { return h < end; });
  const std::int32_t tokens = cut == held.end() ? end : *cut;
  if (std::all_of(held.begin(), held.end(), [&](std::int32_t h) { return h == tokens; })) return {tokens, kAlike};
  std::vector<std::int32_t> pattern;
  for (const std::int32_t h : held) pattern.push_back(h == end ? kWhole : h - tokens);
  return {tokens, number_of(runs_of(pattern))};
}

std::int32_t RowPatterns::number_of(const std::vector<std::int32_t>& runs) {
  if (runs.empty()) return kAlike;
  const auto [at, is_new] = numbers_.try_emplace(runs, static_cast<std::int32_t>(patterns_.size()));
  if (is_new) {
    Pattern pattern{runs};
    for (std::size_t i = 0; i < runs.size(); i += 2) pattern.has_whole |= runs[i] == kWhole;
    patterns_.push_back(std::move(pattern));
  }
  return at->second;
}

std::vector<std::int32_t> RowPatterns::lengths(const Rows& rows, std::int32_t seen) const {
  if (rows.pattern == kAlike) return {rows.tokens};
  std::vector<std::int32_t> held = from_runs(runs(rows.pattern));
  for (std::int32_t& h : held) h = h == kWhole ? seen : h + rows.tokens;
  return held;
}

}  // namespace kvlab
