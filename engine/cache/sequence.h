#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache/lower_tier.h"
#include "engine/cache/packed_rows.h"
#include "policies/kv/cache/kv_store.h"
#include "traces/attention_trace.h"

namespace kvlab {

// Rows in every layer, and the policy's memory.
struct EngineSequence {
  std::int32_t index = 0;  // place in the cache; key of parts' state
  std::int32_t prompt_tokens = 0;
  std::int32_t question_begin = -1;  // in the prompt; -1: unknown
  std::int32_t seen_tokens = 0;      // run through the model, kept or not
  std::uint64_t draws = 0;
  bool shares_pages = false;      // others read its pages; never packed
  std::vector<std::int32_t> ids;  // [seen_tokens] or more, if read

  // Kept across steps if needed.
  struct Memory {
    TensorArray<float> window;                  // [window tokens, q_heads, head_dim] the prompt's last queries
    std::shared_ptr<TensorArray<float>> pre_q;  // [prompt tokens so far, q_heads, head_dim]; forks share it
    TensorArray<float> pre_k;                   // [seen_tokens, kv_heads, head_dim]
  };
  std::vector<Memory> memory;           // [layers]
  std::vector<KvStore::Sequence> rows;  // [layers]
  std::vector<PackedRows> packed;       // [layers] or empty
  std::vector<LowerTier> tiers;         // [layers] or empty
  struct Offloaded {
    std::vector<std::int32_t> position;
    std::vector<std::uint8_t> kv;  // [tokens, 2, head_dim] of the pages' type
  };
  std::vector<Offloaded> offloaded;       // [layers * kv_heads]
  std::uint64_t pages_id = 0;             // unchanged: pages were at most appended
  std::shared_ptr<const ExtraPass> pass;  // once it ran
};

inline void give_back(KvPages& pages, const std::vector<KvStore::Sequence>& rows) {
  for (const KvStore::Sequence& layer : rows)
    for (const auto& row : layer.pages)
      for (const std::int32_t page : row) pages.give_back(page);
}

struct StepPiece {
  EngineSequence* sequence = nullptr;
  std::int32_t new_tokens = 0;
  bool unshares = false;  // before a cut: copies shared pages
};

}  // namespace kvlab
