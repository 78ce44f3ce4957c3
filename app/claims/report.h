#pragma once

#include <string>
#include <vector>

#include "app/claims/run_claims.h"

namespace kvlab {

// One claim for a terminal: published figure, ours, verdict, and the parts of the setting that could not be matched.
std::string claim_as_text(const ClaimResult& result);

// A line per claim, with the number of each verdict.
std::string claims_as_table(const std::vector<ClaimResult>& results);

// A list of {name, system, published, ours, verdict}; published and ours are numbers, of a published range its low end. Claims that were
// not measured are left out.
std::string claims_as_json(const std::vector<ClaimResult>& results);

// claims.csv, of which figures are drawn.
std::string claims_as_csv(const std::vector<ClaimResult>& results);

// claims.md: the table, then each claim with its setting. `command`: that made it.
std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command);

}  // namespace kvlab
