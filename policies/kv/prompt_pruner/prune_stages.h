#pragma once

#include <string>
#include <vector>

#include "policies/kv/prompt_pruner/prompt_pruner.h"

namespace kvlab {

// `stages`: "DEPTH=TOKENS ...": from this share of the depth on, layers compute this many prompt tokens, or, up to 1, this share. Layer 0
// computes all.
class PruneStages {
 public:
  PruneStages(Params& p, const std::string& fallback);
  // Left by a stage that begins at layer + 1; all if none does.
  [[nodiscard]] std::int32_t after(const ModelShape& model, std::int32_t layer, std::int32_t prompt_tokens) const;

 private:
  struct Stage {
    double depth, tokens;
  };
  std::vector<Stage> stages_;
};

}  // namespace kvlab
