#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/cache/policy_cache_group.h"
#include "policies/kv/code_keeper.h"

// Inside of PolicyCache.
namespace kvlab {

// Gives what formats encode to the sequences of the step, [layer] of EngineSequence::packed.
class PolicyCache::Keeper final : public CodeKeeper {
 public:
  explicit Keeper(const std::vector<std::unique_ptr<Group>>& groups) : groups_(groups) {}
  void keep(const LayerStep& step, const Cast& op) override;
  void keep(const LayerStep& step, const Dequantize& op) override;
  void keep(const LayerStep& step, const LowRankRebuild& op) override;
  void keep(const LayerStep& step, const PruneChannels& op) override;
  void keep(const LayerStep& step, const RestoreOutliers& op) override;
  void keep(const LayerStep& step, const Unsparsify& op) override;

 private:
  template <class Op>
  void give(const LayerStep& step, const ListedTokens& tokens, const Op& op);
  const std::vector<std::unique_ptr<Group>>& groups_;  // the cache's, of the step
};

inline bool is_resting(const EngineSequence& sequence, std::size_t layer) {
  return !sequence.packed.empty() && sequence.packed[layer].is_resting();
}

}  // namespace kvlab
