#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "policies/kv/allocator/counts.h"

namespace kvlab {

// An allocator that gives all KV heads of a layer the same number of tokens, which follows from lengths alone.
class LayerAllocator : public Allocator {
 public:
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
  // Tokens of a KV head in `layer` for a sequence of n tokens, of which a layer keeps `target` in the mean. May exceed n.
  [[nodiscard]] virtual std::int32_t tokens(const ModelShape& model, std::int32_t layer, std::int32_t target, std::int32_t n) const = 0;
};

}  // namespace kvlab
