#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/csv.h"

namespace kvlab {

// Separated by blanks.
std::vector<std::string> words_in(std::string_view text);

// "rate_per_s" of "trace.arrival.poisson.rate_per_s".
std::string last_key(const std::string& path);
// The last key if no other of `paths` ends in it, else the path.
std::string short_path(const std::string& path, const std::vector<std::string>& paths);

// `absent` for a text that is no number.
double real_or(const std::string& text, double absent);

std::vector<std::size_t> all_rows(const CsvTable& table);
// Distinct, in order of first use.
std::vector<std::string> values_of(const CsvTable& table, const std::vector<std::size_t>& rows, std::size_t column);

// Of "AXIS=VALUE" given with --where. Throws InputError.
std::pair<std::string, std::string> axis_and_value(const std::string& condition);

// Numeric columns of summary.csv over all kinds, without axes (docs/results.md).
const std::vector<std::string>& known_metrics();

// "attained" for "slo_attainment_frac"; else the column.
std::string heading_of(const std::string& column);
// Other texts stay.
std::string column_of_heading(const std::string& heading);
std::vector<std::string> metrics_and_headings(const std::vector<std::string>& columns);

}  // namespace kvlab
