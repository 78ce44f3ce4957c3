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

// Gives the sequences of the step their codes, if they are packed between steps (EngineSequence::packed), and their offloaded tokens;
// fetches the tokens of a selector's choice from a lower tier.
class PolicyCache::Keeper final : public KvKeeper {
 public:
  // packs: sequences are packed between steps.
  Keeper(const std::vector<std::unique_ptr<Group>>& groups, bool packs) : groups_(groups), packs_(packs) {}
  [[nodiscard]] bool packs() const { return packs_; }
  void keep(const LayerStep& step, const DecodeOp& op) override;
  void keep(const LayerStep& step, const PackDropped& op) override;
  void fetch(const LayerStep& step, const Selection& selection) override;

  // The tokens that the layer's step read of each row of its group, returned once; empty if none were fetched.
  std::vector<std::vector<std::int32_t>> read_tokens() { return std::exchange(read_, {}); }
  void note_stored(std::int64_t bytes) { moved_.stored_bytes += bytes; }
  Traffic take_moved() { return std::exchange(moved_, {}); }

 private:
  // The sequence of step.seqs[s].
  [[nodiscard]] EngineSequence& sequence_of(const LayerStep& step, std::size_t s) const;
  void fetch_all(const LayerStep& step, const Selection& selection);
  const std::vector<std::unique_ptr<Group>>& groups_;  // the cache's, of the step
  bool packs_;
  std::vector<std::vector<std::int32_t>> read_;  // [rows of the group at work]
  Traffic moved_;                                // between CPU memory and the cache's
};

// Calls part(i) for separate rows: in parallel on the CPU; one after the other on a GPU, where an operation on one takes as long.
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
