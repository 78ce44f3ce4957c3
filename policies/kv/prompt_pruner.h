#pragma once

#include "policies/kv/part.h"

namespace kvlab {

// Decides which tokens of a prompt pass from one layer to the next while the prompt is computed in one piece: later layers compute hidden
// states, keys and values only of these. Counts follow from the model's and the prompt's size, so costs need no data. On the CPU only.
class PromptPruner : public KvPart {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.step_queries = needs.cpu_only = true;
    return needs;
  }
  // `layer` computes `tokens` of a prompt of prompt_tokens; returns the number that the next layer computes.
  [[nodiscard]] virtual std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                          std::int32_t prompt_tokens) const = 0;
  // Tokens at both ends of a prompt that pass every layer; the last one always does.
  struct Ends {
    std::int32_t first = 0, last = 1;
  };
  [[nodiscard]] virtual Ends ends(std::int32_t /*prompt_tokens*/) const { return {}; }
  // Runs after the layer's attention, for prompts that lose tokens there: scores [first[sequences]] of the tokens that the layer computed,
  // those of sequence s from first[s] on; the highest remain. Only the last Ends::last queries of each sequence in step.in.step may be
  // read: those before them are not at consecutive positions.
  virtual void score(LayerStep& step, const std::int64_t* first, float* scores) = 0;
};

using PromptPrunerRegistry = Registry<PromptPruner>;

}  // namespace kvlab
