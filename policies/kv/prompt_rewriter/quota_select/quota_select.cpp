#include "policies/kv/prompt_rewriter/quota_select/quota_select.h"

#include <bit>

namespace kvlab {

OpCall call(const QuotaSelect& a) {
  const auto widths = std::ssize(a.widths);
  const std::int64_t steps = std::bit_width(static_cast<std::uint32_t>(a.tokens));
  return {.op = "quota_select",
          .rows = 1,
          .tokens = a.tokens,
          .outputs = a.kept,
          .bytes = 4 * (widths * a.tokens + a.kept),
          .flops = widths * a.tokens * (2 + steps)};
}

}  // namespace kvlab
