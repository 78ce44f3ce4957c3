#pragma once

#include <cstdint>
#include <vector>

#include "base/config/registration.h"
#include "policies/kv/part.h"

namespace kvlab {

// Later layers compute only passed prompt tokens. Prompts come in one piece, counts follow from sizes. CPU only.
class PromptPruner : public KvPart {
 public:
  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .cpu_only = "prunes prompts between layers"}; }
  [[nodiscard]] virtual std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                          std::int32_t prompt_tokens) const = 0;
  // Tokens at both ends that pass every layer; the last one always does.
  struct Ends {
    std::int32_t first = 0, last = 1;
  };
  [[nodiscard]] virtual Ends ends(std::int32_t /*prompt_tokens*/) const { return {}; }
  // After attention, for prompts that lose tokens: scores [first[sequences]], sequence s from first[s] on; the highest remain. May read
  // only the last Ends::last queries in step.in.step: earlier ones are not at consecutive positions.
  virtual void score(LayerStep& step, const std::int64_t* first, float* scores) = 0;

  [[nodiscard]] Traits provides() const override { return {Trait::kPrunes}; }
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using PromptPrunerRegistry = Registry<PromptPruner>;

}  // namespace kvlab
