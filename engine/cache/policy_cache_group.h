#pragma once

#include <memory>
#include <vector>

#include "engine/cache/policy_cache.h"

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

}  // namespace kvlab
