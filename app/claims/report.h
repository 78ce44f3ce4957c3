#pragma once

#include <string>
#include <vector>

#include "app/claims/run_claims.h"

namespace kvlab {

std::string claim_as_text(const ClaimResult& result);

std::string claims_as_table(const std::vector<ClaimResult>& results);

// {name, system, published, ours, verdict} per measured claim. A published range gives its low end.
std::string claims_as_json(const std::vector<ClaimResult>& results);

std::string claims_as_csv(const std::vector<ClaimResult>& results);

// claims.md. command: that made it.
std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command);

}  // namespace kvlab
