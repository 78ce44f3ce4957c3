#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "app/claims/claim.h"

namespace kvlab {

struct ClaimResult {
  Claim claim;
  std::optional<double> ours;  // nullopt: see error
  std::string error;
  int status = 0;                    // 2 for bad input, 130 after Ctrl-C, else 1
  std::vector<std::string> remarks;  // requests not served, sources of step times
  [[nodiscard]] Verdict verdict() const { return judge(claim.published, claim.counts, ours.value()); }
};

struct ClaimOptions {
  int jobs = 0;                           // 0: number of cores
  std::string folder = "results/claims";  // gets NAME/RUN/
  bool force = false;                     // repeat runs with unchanged inputs
};

// Progress goes to `err`.
std::vector<ClaimResult> run_claims(const std::vector<Claim>& claims, const ClaimOptions& options, std::ostream& err);

}  // namespace kvlab
