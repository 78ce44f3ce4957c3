#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

struct CleanCommand {
  std::string folder;
  bool yes = false;
};

// Removes runs and files that the newest sweep does not use, after confirmation; only those named by kvlab's manifests.
int clean_results(const CleanCommand& command, std::ostream& out);

}  // namespace kvlab
