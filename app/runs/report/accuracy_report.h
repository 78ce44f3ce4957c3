#pragma once

#include <iosfwd>

#include "base/csv.h"

namespace kvlab {

// A line per run: share of right answers per task (lengths pooled), mean, and costs.
void print_accuracy(const CsvTable& summary, std::ostream& out);

}  // namespace kvlab
