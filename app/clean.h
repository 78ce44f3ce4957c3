#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

struct CleanCommand {
  std::string folder;
  bool yes = false;      // remove without asking
  bool can_ask = false;  // somebody reads the question and can type an answer
};

// `kvlab clean`: says what of a results folder is not of its newest sweep (runs of others, what runs that were cut off left, answers of
// graded runs that are not complete) and removes it once that is confirmed. Only files that kvlab's manifests name are removed. Returns 0.
int clean_results(const CleanCommand& command, std::istream& in, std::ostream& out);

}  // namespace kvlab
