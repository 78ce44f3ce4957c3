#pragma once

#include <string>

#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

// "FILE:LINE: ", for messages.
inline std::string place(const CsvTable& table, std::size_t line) { return table.file + ":" + std::to_string(line) + ": "; }

// Field in [min, max]; throws InputError with file:line.
inline double number_in(const CsvTable& table, std::size_t line, const std::string& field, double min, double max) {
  double value = 0;
  if (!parse_real(field, value) || !(value >= min && value <= max))
    throw InputError(place(table, line) + "'" + field + "' is not a number from " + number_text(min) + " to " + number_text(max));
  return value;
}

}  // namespace kvlab
