#pragma once

#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// Replaces a prompt by some of its tokens before the model computes it. The first layers scan the prompt, chunk by chunk over a cache that
// a policy of its own may cut; queries, keys or values of this scan say which tokens stay; all layers then compute these alone, at
// consecutive positions that end where the prompt does. A prompt that stays whole is not scanned. Prompts come in one piece, and lengths
// alone tell how many tokens stay, so costs need no data. On the CPU alone.
class PromptRewriter : public KvPart {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.question = needs.cpu_only = true;
    return needs;
  }
  struct Scan {
    std::int32_t layers = 0;  // from the first on; of the last one queries, keys and values alone are computed
    std::int32_t chunk_tokens = 0;
    std::string policy;  // of the layers' cache, as an experiment writes it
  };
  [[nodiscard]] virtual Scan scan(const ModelShape& model) const = 0;
  // Vectors of one layer of the scan that choose() reads.
  struct Vectors {
    enum class Kind : std::uint8_t { kQueries, kKeys, kValues };
    std::int32_t layer = 0;
    Kind kind = Kind::kKeys;
    std::int32_t head = -1;  // -1: all heads
    bool before_rope = false;
    bool operator==(const Vectors&) const = default;
  };
  [[nodiscard]] virtual std::vector<Vectors> reads(const ModelShape& model) const = 0;
  // The number of a prompt's tokens that stay, those of its question among them.
  [[nodiscard]] virtual std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const = 0;

  struct Scanned {
    Ops& ops;
    const ModelShape& model;
    SeqStep seq;                            // the whole prompt
    std::span<const float* const> vectors;  // of reads() [prompt_tokens, heads, head_dim]; null on shapes
    [[nodiscard]] std::int32_t question_tokens() const { return seq.question_begin < 0 ? 0 : seq.end() - seq.question_begin; }
  };
  // Places in the prompt of the tokens that stay, ascending: kept() of them, the last token among them, in scratch memory of `ops`.
  virtual const std::int32_t* choose(const Scanned& scanned) = 0;
};

using PromptRewriterRegistry = Registry<PromptRewriter>;

}  // namespace kvlab
