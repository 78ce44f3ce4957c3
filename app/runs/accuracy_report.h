#pragma once

#include <iosfwd>

#include "base/csv.h"

namespace kvlab {

// The summary of graded runs for people: a line per run, a column per task (share of right answers, lengths pooled), their mean, and what
// it was bought for.
void print_accuracy(const CsvTable& summary, std::ostream& out);

}  // namespace kvlab
