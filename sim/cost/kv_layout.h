#pragma once

#include <cstdint>

#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// KV memory of one GPU, as vLLM v1 lays it out. Layers of one kind are cut into groups of `group_layers` layers, each with a block table of
// its own; a page holds a block's tokens in the layers of a group. A model whose layers are alike has one group of all layers.
struct KvLayout {
  std::int64_t group_layers = 0;
  std::int64_t page_bytes = 0;
  std::int64_t full_groups = 1;                // of layers that see all tokens
  std::int64_t window = 0, window_groups = 0;  // tokens that a query sees in layers with a window; groups of these
  std::int64_t state_groups = 0;               // of layers with a state
  std::int64_t state_pages = 0;                // of a sequence, in all of these groups

  [[nodiscard]] bool is_one_group() const { return window_groups == 0 && state_groups == 0; }
  [[nodiscard]] std::int64_t groups() const { return full_groups + window_groups + state_groups; }
};

// `is_hybrid` false: every layer with a cache keeps all tokens, in one group, and states are not counted.
KvLayout kv_layout(const ModelSpec& m, const Parallel& p, std::int64_t block_tokens, bool is_hybrid = true);

// Bytes that a sequence holds in that layout, while `new_tokens` are computed on top of `tokens`.
std::int64_t sequence_bytes(const KvLayout& layout, std::int64_t block_tokens, std::int64_t tokens, std::int64_t new_tokens);

// The GPU KV cache size that vLLM logs for a number of pages: tokens of a sequence for which every group keeps all. Since v0.21 vLLM logs
// the total tokens of all longest requests that fit instead (vllm#40691), the same for models of one group.
std::int64_t cache_tokens(const KvLayout& layout, std::int64_t pages, std::int64_t block_tokens);

}  // namespace kvlab
