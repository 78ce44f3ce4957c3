#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "app/claims/run_claims.h"

namespace kvlab {

struct ReproduceCommand {
  std::vector<std::string> names;  // of claims, or files
  bool every = false, json = false, quiet = false;
  std::string out;  // for claims.md and claims.csv; "": none
  ClaimOptions runs;
};

// Returns 0 for any verdict, 2 or 1 if a claim has none, 130 after Ctrl-C. Throws InputError on a bad claim file.
int reproduce_claims(const ReproduceCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
