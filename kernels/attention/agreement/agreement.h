#pragma once

#include <cstdint>

namespace kvlab {

// Attention `own` over n tokens against `truth` over all; token i: column[i], -1: none. Not logged.
struct Agreement {
  const float* truth = nullptr;
  const float* own = nullptr;            // [n]
  const std::int32_t* column = nullptr;  // [n]
  std::int64_t n = 0;
};
struct AgreementSums {
  double mass = 0;  // sum of truth[column[i]]
  double kl = 0;    // sum of own[i] log(own[i] / truth[column[i]]) in nats, logarithms clamped at 1e-30
};
AgreementSums run_cpu(const Agreement&);

}  // namespace kvlab
