#pragma once

#include <cstdint>

namespace kvlab {

// Compares two attention distributions of one query head: `own` over n attended tokens, `truth` over all tokens. Attended token i is token
// column[i] of the truth; -1 marks no token and is skipped. A diagnostic, not part of any method: it is not logged.
struct Agreement {
  const float* truth = nullptr;
  const float* own = nullptr;            // [n]
  const std::int32_t* column = nullptr;  // [n]
  std::int64_t n = 0;
};
struct AgreementSums {
  double mass = 0;  // sum of truth[column[i]]
  double kl = 0;    // sum of own[i] log(own[i] / truth[column[i]]) in nats; probabilities below 1e-30 count as 1e-30 in the logarithm
};
AgreementSums run_cpu(const Agreement&);

}  // namespace kvlab
