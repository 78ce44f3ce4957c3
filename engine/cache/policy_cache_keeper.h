#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/cache/policy_cache_group.h"
#include "policies/kv/kv_keeper.h"

// Inside of PolicyCache.
namespace kvlab {

// Gives the sequences of the step what formats encode, where these rest packed (EngineSequence::packed), and what is offloaded.
class PolicyCache::Keeper final : public KvKeeper {
 public:
  // packs: sequences rest packed.
  Keeper(const std::vector<std::unique_ptr<Group>>& groups, bool packs) : groups_(groups), packs_(packs) {}
  [[nodiscard]] bool packs() const { return packs_; }
  void keep(const LayerStep& step, const Cast& op) override;
  void keep(const LayerStep& step, const Dequantize& op) override;
  void keep(const LayerStep& step, const LowRankRebuild& op) override;
  void keep(const LayerStep& step, const PruneChannels& op) override;
  void keep(const LayerStep& step, const RestoreOutliers& op) override;
  void keep(const LayerStep& step, const Unsparsify& op) override;
  void keep(const LayerStep& step, const PackDropped& op) override;

 private:
  // Of the step's sequences[s].
  [[nodiscard]] EngineSequence& sequence_of(const LayerStep& step, std::size_t s) const;
  template <class Op>
  void give(const LayerStep& step, const ListedTokens& tokens, const Op& op);
  const std::vector<std::unique_ptr<Group>>& groups_;  // the cache's, of the step
  bool packs_;
};

inline bool is_resting(const EngineSequence& sequence, std::size_t layer) {
  return !sequence.packed.empty() && sequence.packed[layer].is_resting();
}

}  // namespace kvlab
