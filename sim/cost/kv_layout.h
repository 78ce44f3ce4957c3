#pragma once

#include <cstdint>

#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// One GPU's KV memory as in vLLM v1: groups of `group_layers` layers of one kind, each with its block table. A page holds a block's tokens
// in a group. Equal layers form one group.
struct KvLayout {
  std::int64_t group_layers = 0;
  std::int64_t page_bytes = 0;
  std::int64_t full_groups = 1;
  std::int64_t window = 0, window_groups = 0;  // in tokens; their groups
  std::int64_t state_groups = 0;
  std::int64_t state_pages = 0;  // per sequence

  [[nodiscard]] bool is_one_group() const { return window_groups == 0 && state_groups == 0; }
  [[nodiscard]] std::int64_t groups() const { return full_groups + window_groups + state_groups; }
};

// is_hybrid false: one group keeps all tokens; states are not counted.
KvLayout kv_layout(const ModelSpec& m, const Parallel& p, std::int64_t block_tokens, bool is_hybrid = true);

// While `new_tokens` are computed after `tokens`.
std::int64_t sequence_bytes(const KvLayout& layout, std::int64_t block_tokens, std::int64_t tokens, std::int64_t new_tokens);

// vLLM's logged "GPU KV cache size": tokens of a sequence if every group keeps all. Since v0.21 (vllm#40691) tokens of all longest requests
// that fit, equal for one group.
std::int64_t cache_tokens(const KvLayout& layout, std::int64_t pages, std::int64_t block_tokens);

}  // namespace kvlab
