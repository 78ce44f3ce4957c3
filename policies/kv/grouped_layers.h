#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/ceil_div.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// Layers of a model that do not keep all tokens of a sequence. Groups of the same number of layers share a block table, as in vLLM's hybrid
// KV cache manager: a page is a group's share of a block of the pool.
struct LayerGroups {
  std::int32_t block_tokens = 16;
  std::int64_t window = 0, window_groups = 0;  // tokens that a query sees in layers with a window, itself included; groups of such layers
  std::int64_t state_pages = 0;                // of a sequence: states of constant size
  std::int64_t step_tokens = 0;                // most tokens of a step: a longer prompt is computed in parts; 0: no limit
};

// Plain paged KV of a model whose layers differ: layers that see all tokens have them in blocks, the others have private pages beside
// these. Pages that the window has left go back when the sequence's next step is planned.
class GroupedLayers final : public Footprint {
 public:
  explicit GroupedLayers(const LayerGroups& groups) : groups_(groups) {}

  FootprintStep step(const SeqState& seq) override {
    const std::int32_t after = seq.seen_tokens + seq.new_tokens;
    return {pages(seq.seen_tokens, after), pages(after, after), 0, after, 0, false};
  }
  void charge(std::span<SeqState> batch, PolicyWork&) override {
    for (SeqState& seq : batch) seq.attended_tokens = seq.seen_tokens;
  }
  // At its end, or in the last part of its prompt where that takes more.
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override {
    return std::max(pages(seen_tokens, seen_tokens), pages(0, prompt_tokens));
  }
  // A state cannot be found again by the tokens that led to it.
  [[nodiscard]] bool shares_prefixes() const override { return groups_.state_pages == 0; }
  [[nodiscard]] bool is_steady_in_decode() const override { return groups_.window_groups == 0; }
  [[nodiscard]] bool returns_pages() const override { return true; }

 private:
  // While the tokens up to `end` are computed on top of `seen` ones, the last part of them if they need several steps.
  [[nodiscard]] std::int64_t pages(std::int64_t seen, std::int64_t end) const {
    if (groups_.step_tokens > 0) seen = std::max(seen, end - groups_.step_tokens);
    const std::int64_t left = std::max<std::int64_t>(0, seen - groups_.window + 1) / groups_.block_tokens;
    return groups_.window_groups * (ceil_div(end, groups_.block_tokens) - left) + groups_.state_pages;
  }

  LayerGroups groups_;
};

}  // namespace kvlab
