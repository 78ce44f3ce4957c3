#pragma once

#include <string>
#include <vector>

#include "base/config/params.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// `collectives:` of a hardware file.
struct CardCollectives {
  CollectiveTables tables;
  std::string named;  // "": inline or none
};

// Inline tables or a file in profiles/collectives; may be empty. Throws InputError with file:line:column, also for another card.
CardCollectives read_card_collectives(Params& hardware, const ConfigFile& config, const std::string& card);
// Throws InputError if missing.
std::string find_card_collectives(const ConfigFile& hardware, const std::string& named);

// Reads <op>.csv. Columns: bytes, time_ns or time_us, optional ranks (default: `ranks`) and spread_frac.
void read_collective_tables(const std::string& folder, int ranks, std::vector<CollectiveTable>& tables);

}  // namespace kvlab
