#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "policies/kv/allocator/counts.h"

namespace kvlab {

// Equal counts in a layer, from lengths only.
class LayerAllocator : public Allocator {
 public:
  [[nodiscard]] bool keeps_no_state() const override { return true; }
  void allocate(Ops&, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) final {
    for (ScoredLayer& l : layers)
      for (std::size_t s = 0; s < seqs.size(); ++s)
        keep_alike(l, static_cast<std::int32_t>(s), tokens(model, l.layer, l.target[s], seqs[s].end()));
  }
  [[nodiscard]] std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t /*kv_head*/, std::int32_t target,
                                      std::int32_t n) const final {
    return std::min(n, tokens(model, layer, target, n));
  }

 private:
  // Tokens per KV head of n, `target` on average. May exceed n.
  [[nodiscard]] virtual std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const = 0;
};

}  // namespace kvlab
