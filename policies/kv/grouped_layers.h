#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/ceil_div.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// Layers that do not keep all tokens. Groups of equally many layers share a block table (vLLM's hybrid KV cache manager); a page is a
// group's share of a block.
struct LayerGroups {
  std::int32_t block_tokens = 16;
  std::int64_t window = 0, window_groups = 0;  // tokens that a query sees, with itself
  std::int64_t state_pages = 0;                // per sequence
  std::int64_t step_tokens = 0;                // most tokens of a step; 0: no limit
};

// Full-attention layers use blocks, others private pages, freed outside the window when the next step is planned.
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
  // The maximum of the end and the prompt's last part.
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override {
    return std::max(pages(seen_tokens, seen_tokens), pages(0, prompt_tokens));
  }
  [[nodiscard]] bool shares_prefixes() const override { return groups_.state_pages == 0; }
  [[nodiscard]] bool is_steady_in_decode() const override { return groups_.window_groups == 0; }
  [[nodiscard]] bool returns_pages() const override { return true; }

 private:
  // While tokens [seen, end) are computed.
  [[nodiscard]] std::int64_t pages(std::int64_t seen, std::int64_t end) const {
    if (groups_.step_tokens > 0) seen = std::max(seen, end - groups_.step_tokens);
    const std::int64_t left = std::max<std::int64_t>(0, seen - groups_.window + 1) / groups_.block_tokens;
    return groups_.window_groups * (ceil_div(end, groups_.block_tokens) - left) + groups_.state_pages;
  }

  LayerGroups groups_;
};

}  // namespace kvlab
