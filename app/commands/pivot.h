#pragma once

#include <string>
#include <vector>

namespace kvlab {

struct PivotCommand {
  std::string folder;
  std::string rows, columns, metric;  // columns of summary.csv, or the last part of an axis' name; columns "": one column
  std::vector<std::string> where;     // "AXIS=VALUE" for further axes
  bool csv = false;
};

// A cell is the mean over seeds; text adds the half width of its 95 % t-interval if seeds differ. Throws InputError for an unknown column
// or value, or an axis that varies within a cell.
std::string pivot_table(const PivotCommand& command);

}  // namespace kvlab
