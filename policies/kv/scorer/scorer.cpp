#include "policies/kv/scorer/scorer.h"

namespace kvlab {

Traits Scorer::provides() const {
  Traits traits{Trait::kScores};
  traits.set(Trait::kScalesDiffer, !comparable_across_heads());
  traits.set(Trait::kRanksAfterCounts, ranks_after_counts());
  traits.set(Trait::kProtectsShare, protects().recent_frac > 0);
  traits.set(Trait::kSplitsHeads, splits_heads());
  return traits;
}

std::vector<Conflict> Scorer::conflicts() const {
  std::vector<Conflict> all{{{}, {Trait::kActs}, "scorer '{scorer}' is never asked, because the trigger is 'never'"}};
  const std::string together =
      "scorer '{scorer}' takes all KV heads of a layer together, but {splitter} lets them keep different numbers of tokens";
  if (equal_heads() == EqualHeads::kLeft) all.push_back({{Trait::kActs, Trait::kSplitsHeads}, {}, together});
  if (equal_heads() == EqualHeads::kFound)
    all.push_back({{Trait::kActs, Trait::kSplitsHeads, Trait::kShrinks, Trait::kCutsAgain},
                   {},
                   together + ", and trigger '{trigger}' acts on them again"});
  return all;
}

}  // namespace kvlab
