#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

namespace kvlab {

struct WhyCommand {
  std::string folder;
  std::string metric, run, out;  // "": the usual metric; the best run; standard output
  bool every = false;
  bool tries = true;
  bool json = false;
  double seconds = 60;  // for tries, per run
};

// Returns 0, or 130 after Ctrl-C. Throws InputError for missing results, an unknown run or metric, or a run without requests.
int explain_results(const WhyCommand& command, std::ostream& out);

// After a sweep: one run, without tries. Prints nothing without an SLO or search, or if requests are many.
void print_short_explanation(const std::filesystem::path& folder, std::ostream& out);

}  // namespace kvlab
