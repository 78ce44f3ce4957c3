#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/config/registration.h"
#include "policies/kv/part.h"

namespace kvlab {

// The first layers scan a prompt in chunks, over a cache with its own policy; queries, keys or values of the scan choose tokens. All layers
// compute these at consecutive positions that end at the prompt's end. Prompts that stay whole are not scanned. Prompts come in one piece,
// counts follow from lengths. CPU only.
class PromptRewriter : public KvPart {
 public:
  [[nodiscard]] Needs needs() const override { return {.question = true, .cpu_only = "rewrites prompts"}; }
  struct Scan {
    std::int32_t layers = 0;  // from the first; the last one computes only queries, keys and values
    std::int32_t chunk_tokens = 0;
    std::string policy;  // of the scan's cache, as in an experiment
  };
  [[nodiscard]] virtual Scan scan(const ModelShape& model) const = 0;
  struct Vectors {
    enum class Kind : std::uint8_t { kQueries, kKeys, kValues };
    std::int32_t layer = 0;
    Kind kind = Kind::kKeys;
    std::int32_t head = -1;  // -1: all heads
    bool before_rope = false;
    bool operator==(const Vectors&) const = default;
  };
  [[nodiscard]] virtual std::vector<Vectors> reads(const ModelShape& model) const = 0;
  // With the question.
  [[nodiscard]] virtual std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const = 0;

  struct Scanned {
    Ops& ops;
    const ModelShape& model;
    SeqStep seq;                            // the whole prompt
    std::span<const float* const> vectors;  // of reads() [prompt_tokens, heads, head_dim]; null on shapes
    [[nodiscard]] std::int32_t question_tokens() const { return seq.question_begin < 0 ? 0 : seq.end() - seq.question_begin; }
  };
  // Ascending, with the last token; scratch of `ops`.
  virtual const std::int32_t* choose(const Scanned& scanned) = 0;

  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using PromptRewriterRegistry = Registry<PromptRewriter>;

}  // namespace kvlab
