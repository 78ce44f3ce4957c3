#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "app/claims/run_claims.h"

namespace kvlab {

// `kvlab reproduce`: published claims beside the simulator's figures.
struct ReproduceCommand {
  std::vector<std::string> names;  // of claims, or files
  bool every = false, json = false, quiet = false;
  std::string out;  // folder that gets claims.md and claims.csv; "": none
  ClaimOptions runs;
};

// Returns 0 whatever the verdicts are; 2 or 1 where a claim could not be measured, 130 after Ctrl-C. InputError on a claim's file.
int reproduce_claims(const ReproduceCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
