#pragma once

#include <iosfwd>
#include <string>

#include "app/compare/point_rows.h"

namespace kvlab {

// `kvlab validate --points FILE --out DIR`.
struct PointsCommand {
  std::string file, out;
  PointOptions options;
  bool quiet = false, shows_progress = false;
};

// Simulates each measured point of a file and writes points.csv, groups.csv and left_out.csv into the folder (docs/results.md). Prints the
// reasons of the rows that are left out, and the error by group. Returns the exit status: 0, or 130 after Ctrl-C, when nothing is written.
int validate_points(const PointsCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
