#include "kernels/attention/agreement/agreement.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

AgreementSums run_cpu(const Agreement& a) {
  constexpr float kLeast = 1e-30F;
  AgreementSums sums;
  for (std::int64_t i = 0; i < a.n; i += kLanes) {
    Lanes truth = Lanes::Zero(), own = Lanes::Zero();
    for (std::int64_t l = 0; l < std::min(kLanes, a.n - i); ++l) {
      if (a.column[i + l] < 0) continue;
      truth[l] = a.truth[a.column[i + l]];
      own[l] = a.own[i + l];
    }
    const Lanes log_own = own.max(kLeast).log(), log_truth = truth.max(kLeast).log();
    sums.mass += static_cast<double>(truth.sum());
    sums.kl += static_cast<double>((own * (log_own - log_truth)).sum());
  }
  return sums;
}

}  // namespace kvlab
