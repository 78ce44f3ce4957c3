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

// Writes points.csv, groups.csv and left_out.csv (docs/results.md). Returns 0, or 130 after Ctrl-C without writing.
int validate_points(const PointsCommand& command, std::ostream& out, std::ostream& err);

}  // namespace kvlab
