#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "engine/cache/policy_cache_group.h"
#include "policies/kv/kv_keeper.h"

// Inside of PolicyCache.
namespace kvlab {

// Gives the sequences of the step what formats encode, where these rest packed (EngineSequence::packed), and what is offloaded; brings what
// a selector's choice needs from a lower tier.
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
  void fetch(const LayerStep& step, const Selection& selection) override;

  // What the layer's step read of each row of its group, once; nothing where no tokens were asked for.
  std::vector<std::vector<std::int32_t>> read_tokens() { return std::exchange(read_, {}); }
  void note_stored(std::int64_t bytes) { moved_.stored_bytes += bytes; }
  Traffic take_moved() { return std::exchange(moved_, {}); }

 private:
  // Of the step's sequences[s].
  [[nodiscard]] EngineSequence& sequence_of(const LayerStep& step, std::size_t s) const;
  void fetch_all(const LayerStep& step, const Selection& selection);
  template <class Op>
  void give(const LayerStep& step, const ListedTokens& tokens, const Op& op);
  const std::vector<std::unique_ptr<Group>>& groups_;  // the cache's, of the step
  bool packs_;
  std::vector<std::vector<std::int32_t>> read_;  // [rows of the group at work]
  Traffic moved_;                                // between host memory and the cache's
};

// What is done to rows that lie apart: on a GPU one after the other, there an operation takes as long for one.
inline void for_each_apart(const TensorMemory& memory, std::int64_t count, const std::function<void(std::int64_t)>& part) {
  if (memory.on_host()) return for_each_in_parallel(count, part);
  for (std::int64_t i = 0; i < count; ++i) part(i);
}

inline bool is_resting(const EngineSequence& sequence, std::size_t layer) {
  return !sequence.packed.empty() && sequence.packed[layer].is_resting();
}

inline bool is_lowered(const EngineSequence& sequence, std::size_t layer) {
  return !sequence.tiers.empty() && sequence.tiers[layer].is_resting();
}

}  // namespace kvlab
