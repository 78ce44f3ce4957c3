#pragma once

#include <string>
#include <vector>

#include "app/claims/run_claims.h"

namespace kvlab {

// Published and measured figure, verdict, unmatched parts of the setting.
std::string claim_as_text(const ClaimResult& result);

// One line per claim, then the number of each verdict.
std::string claims_as_table(const std::vector<ClaimResult>& results);

// A list of {name, system, published, ours, verdict}. A published range gives its low end. Claims without a measurement are left out.
std::string claims_as_json(const std::vector<ClaimResult>& results);

std::string claims_as_csv(const std::vector<ClaimResult>& results);

// claims.md: the table, then each claim with its setting. command: that made it.
std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command);

}  // namespace kvlab
