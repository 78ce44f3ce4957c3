#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "app/claims/claim.h"

namespace kvlab {

// A claim with its outcome: a measured figure, or the error that kept it from being measured.
struct ClaimResult {
  Claim claim;
  std::optional<double> ours;  // none: see error
  std::string error;
  int status = 0;                    // exit status of the error: 2 for bad input, 130 after Ctrl-C, else 1
  std::vector<std::string> remarks;  // on its runs: requests that were not served, and where step times come from
  [[nodiscard]] Verdict verdict() const { return judge(claim.published, claim.counts, ours.value()); }
};

struct ClaimOptions {
  int jobs = 0;                           // runs of claims at a time; 0: the machine's number of cores
  std::string folder = "results/claims";  // that gets NAME/RUN/, a results folder for each run
  bool force = false;                     // do runs again whose inputs have not changed
};

// Does the runs of all claims, each as `kvlab run` does one, and measures. Lines on progress go to `err`.
std::vector<ClaimResult> run_claims(const std::vector<Claim>& claims, const ClaimOptions& options, std::ostream& err);

}  // namespace kvlab
