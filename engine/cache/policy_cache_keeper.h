#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "engine/cache/policy_cache_group.h"
#include "policies/kv/cache/kv_keeper.h"

namespace kvlab {

// Stores codes and offloaded tokens, and fetches a selector's tokens.
class PolicyCache::Keeper final : public KvKeeper {
 public:
  Keeper(const std::vector<std::unique_ptr<Group>>& groups, bool packs) : groups_(groups), packs_(packs) {}
  [[nodiscard]] bool packs() const { return packs_; }
  void keep(const LayerStep& step, const DecodeOp& op) override;
  void keep(const LayerStep& step, const TokenCopy& dropped) override;
  void fetch(const LayerStep& step, const Selection& selection) override;

  // For the layer's step, per row, returned once.
  std::vector<std::vector<std::int32_t>> read_tokens() { return std::exchange(read_, {}); }
  void note_stored(std::int64_t bytes) { moved_.stored_bytes += bytes; }
  Traffic take_moved() { return std::exchange(moved_, {}); }

 private:
  [[nodiscard]] EngineSequence& sequence_of(const LayerStep& step, std::size_t s) const;
  void fetch_all(const LayerStep& step, const Selection& selection);
  const std::vector<std::unique_ptr<Group>>& groups_;
  bool packs_;
  std::vector<std::vector<std::int32_t>> read_;
  Traffic moved_;  // between CPU memory and the cache's
};

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
