#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvlab {

// `kvlab pivot`: one metric of a sweep as a table over two of its axes.
struct PivotCommand {
  std::string folder;                 // results folder
  std::string rows, columns, metric;  // columns of summary.csv; of an axis the last part of its name will do. columns: "": one column
  std::vector<std::string> where;     // "AXIS=VALUE": runs to take, where further axes vary
  bool csv = false;
};

// The table as text or CSV: a cell is the mean over seeds, as text with the half width of its 95 % t-interval where seeds differ.
// InputError: no such column; an axis that varies within a cell; a value that no run has.
std::string pivot_table(const PivotCommand& command);
int print_pivot(const PivotCommand& command, std::ostream& out);

// Adds the command to the command line. choose: called when it is given.
void add_pivot_command(CLI::App& app, PivotCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
