#pragma once

#include <string>
#include <vector>

#include "base/params.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// `collectives:` of a hardware file.
struct CardCollectives {
  CollectiveTables tables;
  std::string named;  // the file of the tables as the hardware file names it; "": tables in place, or none
};

// Tables in place, or the name of a file in profiles/collectives. None: empty. InputError with file:line:column, also for a table of
// another card than `card`, the hardware's `name`.
CardCollectives read_card_collectives(Params& hardware, const ConfigFile& config, const std::string& card);
// The path of CardCollectives::named. InputError if there is none.
std::string find_card_collectives(const ConfigFile& hardware, const std::string& named);

// Tables of a profile in `folder`: <op>.csv of each collective that is there. Columns: bytes, time_ns or time_us, and, if there, ranks
// (else all rows are over `ranks`) and spread_frac.
void read_collective_tables(const std::string& folder, int ranks, std::vector<CollectiveTable>& tables);

}  // namespace kvlab
