#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace kvlab {

// Chooses `kept` tokens of a prompt: all in [0, first) and [last_begin, tokens), and of those between the ones with the highest scores. The
// scores are smoothed once for each width, as the largest of that many neighbours (odd; cut at both ends of the prompt). The tokens to be
// chosen are shared out equally over the widths, earlier ones first; each takes its share from the tokens that no width before it took, of
// equal scores the first ones. ILRe: Liang et al. 2025, arXiv:2508.17892, with equal shares.
struct QuotaSelect {
  std::int32_t tokens = 0, first = 0, last_begin = 0, kept = 0;
  std::span<const std::int32_t> widths;
  const float* scores = nullptr;  // [tokens]
  std::int32_t* index = nullptr;  // [kept] out, ascending
};
// The scores once for each width, and a comparison per step of a search for the largest ones.
OpCall call(const QuotaSelect&);
void run_cpu(const QuotaSelect&);

}  // namespace kvlab
