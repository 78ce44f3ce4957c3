#pragma once

#include <string>
#include <vector>

#include "base/params.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// `collectives:` of a hardware file: tables in place, or the name of a file in profiles/collectives. None: empty. InputError with
// file:line:column, also for a table of another card than `card`, the hardware's `name`.
CollectiveTables read_card_collectives(Params& hardware, const ConfigFile& config, const std::string& card);

// Tables of a profile in `folder`: <op>.csv of each collective that is there. Columns: bytes, time_ns or time_us, and, if there, ranks
// (else all rows are over `ranks`) and spread_frac.
void read_collective_tables(const std::string& folder, int ranks, std::vector<CollectiveTable>& tables);

}  // namespace kvlab
