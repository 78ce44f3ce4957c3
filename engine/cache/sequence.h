#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache/lower_tier.h"
#include "engine/cache/packed_rows.h"
#include "policies/kv/kv_store.h"
#include "traces/attention_trace.h"

namespace kvlab {

// One sequence on its way through a model with a KV policy: its rows in every layer, and what the policy observes beyond one step.
struct EngineSequence {
  std::int32_t index = 0;  // its place among the sequences of the cache: parts keep their state by it
  std::int32_t prompt_tokens = 0;
  std::int32_t question_begin = -1;  // position in the prompt; -1: unknown
  std::int32_t seen_tokens = 0;      // run through the model, kept or not
  std::uint64_t draws = 0;           // names its random draws
  bool shares_pages = false;         // others read its rows' pages: the rows are not packed
  std::vector<std::int32_t> ids;     // [seen_tokens] at least, where the policy or an extra pass reads them

  // Tensors of one layer that are kept across steps if the policy needs them, in the model's memory.
  struct Memory {
    TensorArray<float> window;                  // [window tokens, q_heads, head_dim] the prompt's last queries
    std::shared_ptr<TensorArray<float>> pre_q;  // [prompt's tokens so far, q_heads, head_dim] before RoPE; forks share it
    TensorArray<float> pre_k;                   // [seen_tokens, kv_heads, head_dim] before RoPE
  };
  std::vector<Memory> memory;           // [layers]
  std::vector<KvStore::Sequence> rows;  // [layers]
  std::vector<PackedRows> packed;       // [layers] if the cache packs between steps; packed rows have no pages
  std::vector<LowerTier> tiers;         // [layers] if the cache keeps lower tiers of selectors in CPU memory; likewise without pages
  // Tokens of one KV head in one layer that the policy moved to CPU memory, in that order.
  struct Offloaded {
    std::vector<std::int32_t> position;
    std::vector<std::uint8_t> kv;  // [tokens, 2, head_dim] of the pages' type, K before V
  };
  std::vector<Offloaded> offloaded;       // [layers * kv_heads]
  std::uint64_t pages_id = 0;             // unchanged: between steps pages were at most appended to the rows
  std::shared_ptr<const ExtraPass> pass;  // that the policy observes, once it ran
};

// The pages of all rows go back.
inline void give_back(KvPages& pages, const std::vector<KvStore::Sequence>& rows) {
  for (const KvStore::Sequence& layer : rows)
    for (const auto& row : layer.pages)
      for (const std::int32_t page : row) pages.give_back(page);
}

// A sequence's share of a step; its tokens follow those of the pieces before it.
struct StepPiece {
  EngineSequence* sequence = nullptr;
  std::int32_t new_tokens = 0;
  bool unshares = false;  // the policy will cut it in this step: it acts on copies of pages that others read
};

}  // namespace kvlab
