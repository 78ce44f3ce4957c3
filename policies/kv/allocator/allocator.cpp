#include "policies/kv/allocator/allocator.h"

namespace kvlab {

bool Allocator::over_shares(const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t target,
                            std::int32_t n) const {
  for (std::size_t h = 0; h < len.size(); ++h)
    if (len[h] > expected(model, layer, static_cast<std::int32_t>(h), target, n)) return true;
  return false;
}

Traits Allocator::provides() const {
  Traits traits;
  traits.set(Trait::kSplitsHeads, splits_heads());
  return traits;
}

std::vector<Conflict> Allocator::conflicts() const {
  std::vector<Conflict> all;
  if (!is_uniform())
    all.push_back({{}, {Trait::kActs}, "allocator '{allocator}' has nothing to share out, because the trigger is 'never'"});
  if (depends_on_data())
    all.push_back({{Trait::kScalesDiffer},
                   {},
                   "allocator '{allocator}' ranks heads against each other, and scores of '{scorer}' are not comparable between heads"});
  if (fixes_tokens() == FixesTokens::kAll)
    all.push_back({{Trait::kRanksAfterCounts},
                   {},
                   "allocator '{allocator}' chooses the tokens by the scores, and scorer '{scorer}' ranks them anew once counts are known: "
                   "give output_aware 'first_stage: of_budget' (AdaKV over CriticalKV), or ada 'ties: critical_adakv' (CriticalAdaKV) or "
                   "'ties: lower_index'"});
  if (fixes_tokens() != FixesTokens::kNone)
    all.push_back({{Trait::kProtectsShare},
                   {Trait::kPeerTies},
                   "allocator '{allocator}' fixes tokens that stay, and scorer '{scorer}' protects a share of what a row keeps, which is "
                   "known only after that: give scorer '{scorer}' 'recent_frac: 0'"});
  if (!in_decode())
    all.push_back({{Trait::kCutsInDecode},
                   keeps_counts() ? Traits{Trait::kKeepsCounts} : Traits{},
                   "allocator '{allocator}' shares a budget between layers while the prompt runs, but trigger '{trigger}' also acts in "
                   "decode"});
  return all;
}

}  // namespace kvlab
