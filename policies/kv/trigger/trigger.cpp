#include "policies/kv/trigger/trigger.h"

#include <algorithm>

namespace kvlab {

Held::Held(const Allocator& allocator, const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t n)
    : longest_(*std::max_element(len.begin(), len.end())), layer_(layer), n_(n), len_(len), allocator_(&allocator), model_(&model) {}

bool Held::exceeds(std::int32_t target) const {
  if (allocator_ == nullptr || !allocator_->has_shares()) return longest_ > target;
  return n_ > target && allocator_->over_shares(*model_, layer_, len_, target, n_);
}

Traits Trigger::provides() const {
  constexpr std::int32_t kPrompt = 1 << 16;
  Traits traits;
  traits.set(Trait::kActs, acts());
  traits.set(Trait::kCutsPrompts, inside_prefill() || target({0, 0, kPrompt, kPrompt, -1}, kPrompt, {1, 0}).has_value());
  traits.set(Trait::kCutsChunks, inside_prefill());
  traits.set(Trait::kCutsInDecode, in_decode());
  traits.set(Trait::kCutsAgain, in_decode() || inside_prefill());
  traits.set(Trait::kKeepsCounts, keeps_counts());
  return traits;
}

std::vector<Conflict> Trigger::conflicts() const {
  if (!acts()) return {};
  std::vector<Conflict> all{{{}, {Trait::kScores}, "trigger '{trigger}' acts, so there must be a scorer to rank tokens by"}};
  if (needs_budget())
    all.push_back({{}, {Trait::kBudget}, "trigger '{trigger}' acts, so there must be a budget: give budget_tokens or budget_frac"});
  if (inside_prefill())
    all.push_back({{Trait::kSharesPrompts},
                   {},
                   "trigger '{trigger}' cuts the cache inside the prompt, so its blocks cannot be shared: prefix_reuse must be none"});
  return all;
}

}  // namespace kvlab
