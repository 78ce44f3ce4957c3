#pragma once

#include <string>
#include <vector>

#include "policies/kv/prompt_pruner.h"

namespace kvlab {

// The parameter `stages`: "DEPTH=TOKENS ...": layers from this share of the model's depth on compute this many of the prompt's tokens, or,
// up to 1, this share of them. Layer 0 computes all tokens.
class PruneStages {
 public:
  PruneStages(Params& p, const std::string& fallback);
  // Number of a prompt's tokens that remain after a stage which begins after `layer`; all of them if none begins.
  [[nodiscard]] std::int32_t after(const ModelShape& model, std::int32_t layer, std::int32_t prompt_tokens) const;

 private:
  struct Stage {
    double depth, tokens;
  };
  std::vector<Stage> stages_;
};

}  // namespace kvlab
