#pragma once

#include <cstdlib>
#include <string>

#include "base/csv.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

// "FILE:LINE: ", for messages.
inline std::string place(const CsvTable& table, std::size_t line) { return table.file + ":" + std::to_string(line) + ": "; }

// A field as a number in [min, max]; InputError with file:line.
inline double number_in(const CsvTable& table, std::size_t line, const std::string& field, double min, double max) {
  char* end = nullptr;
  const double value = std::strtod(field.c_str(), &end);
  if (field.empty() || *end != '\0' || !(value >= min && value <= max))
    throw InputError(place(table, line) + "'" + field + "' is not a number from " + number_text(min) + " to " + number_text(max));
  return value;
}

}  // namespace kvlab
