#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "engine/cache/policy_cache.h"
#include "policies/kv/cache/kv_keeper.h"

namespace kvlab {

inline std::size_t place(std::int32_t i) { return static_cast<std::size_t>(i); }

struct PolicyCache::Group {
  std::vector<SeqStep> seqs;
  std::vector<EngineSequence*> sequences;
  // In the current layer: each sequence's rows, and positions after pruning (empty: consecutive).
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> rows;
  std::vector<std::vector<std::int32_t>> positions;
  std::vector<std::vector<std::int32_t>> going_on;  // [sequences] KvPolicy::going_on()
  std::vector<std::size_t> unshared;
  std::vector<KvStore> layers;
  std::unique_ptr<EngineObserver> observer;
  bool is_prompt = false, defers = false;
  // For policies that act after the last layer.
  struct Kept {
    TensorArray<float> q, hidden;
  };
  std::vector<Kept> kept;  // [layers]
};

// A layer's tensors in the model's memory, float32.
struct PolicyCache::LayerInput {
  const float* q = nullptr;  // [n, q_heads, head_dim]
  const void* k = nullptr;   // [n, kv_heads, head_dim] of kv_type, tokens kv_stride elements apart (0: dense)
  const void* v = nullptr;
  ElementType kv_type = ElementType::kF32;
  std::int64_t kv_stride = 0;
  float* out = nullptr;                 // [n, q_heads, head_dim]
  const DeviceLayer* native = nullptr;  // on a GPU: in the model's type
  void* native_out = nullptr;
};

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
