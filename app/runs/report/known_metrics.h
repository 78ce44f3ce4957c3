#pragma once

#include <string>
#include <vector>

namespace kvlab {

// Numeric columns of summary.csv over all kinds, without axes (docs/results.md).
const std::vector<std::string>& known_metrics();

// "attained" for "slo_attainment_frac"; else the column.
std::string heading_of(const std::string& column);
// Other texts stay.
std::string column_of_heading(const std::string& heading);
std::vector<std::string> metrics_and_headings(const std::vector<std::string>& columns);

}  // namespace kvlab
