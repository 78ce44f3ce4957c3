#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "policies/kv/prompt_rewriter/prompt_rewriter.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"

namespace kvlab {

// The budget, or first and last tokens and the question if these are more.
class KeptBudget {
 public:
  KeptBudget(Params& p, std::int32_t tokens, std::int32_t first, std::int32_t last)
      : tokens_(p.optional<std::int32_t>("tokens", tokens, 1, 1 << 26, "of a prompt that stay, its ends and the question among them")),
        first_(p.optional<std::int32_t>("first_tokens", first, 0, 1 << 20, "of the prompt that always stay")),
        last_(p.optional<std::int32_t>("last_tokens", last, 0, 1 << 20, "before the question that always stay")) {}

  [[nodiscard]] std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const {
    const std::int64_t ends = std::int64_t{first_} + last_ + std::max(1, question_tokens);
    return static_cast<std::int32_t>(std::min<std::int64_t>(prompt_tokens, std::max<std::int64_t>(tokens_, ends)));
  }
  // Kept tokens by scores [prompt_tokens], smoothed by these widths between the ends.
  [[nodiscard]] const std::int32_t* select(const PromptRewriter::Scanned& scanned, const float* scores,
                                           std::span<const std::int32_t> widths) const {
    const std::int32_t n = scanned.seq.end(), question = scanned.question_tokens();
    const std::int32_t stay = kept(n, question);
    std::int32_t* const index = scanned.ops.ints(stay);
    scanned.ops(QuotaSelect{n, first_, n - last_ - std::max(1, question), stay, widths.data(), static_cast<std::int32_t>(widths.size()),
                            scores, index});
    return index;
  }

 private:
  std::int32_t tokens_, first_, last_;
};

}  // namespace kvlab
