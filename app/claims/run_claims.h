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

std::string claim_as_text(const ClaimResult& result);

std::string claims_as_table(const std::vector<ClaimResult>& results);

// {name, system, published, ours, verdict} per measured claim. A published range gives its low end.
std::string claims_as_json(const std::vector<ClaimResult>& results);

std::string claims_as_csv(const std::vector<ClaimResult>& results);

// claims.md. command: that made it.
std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command);

}  // namespace kvlab
