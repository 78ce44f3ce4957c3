#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlab {

// A source of values that completion offers for an option or argument.
enum class Offer {
  kNames,    // names of `kvlab list KIND`, for each KIND given, blanks between; also "recipes" (KV recipes without parts), "public_traces"
  kWords,    // the words given, separated by blanks; of an argument that takes several, the first only
  kResults,  // results/NAME of each results folder, and folders
  kResultNames,  // NAME of each results folder
  kSettings,     // KEY=VALUE of an experiment, below the key given ("": the top level)
  kAxes,         // axes in summary.csv of the results folder that is the first argument
  kAxisValues,   // AXIS=VALUE of the same
  kMetrics,      // metrics of the same
  kRuns,         // run IDs of the same
  kFiles,
  kFolders,
  kYamlFiles,
  kText  // no values, since the text is free
};

struct Offered {
  Offer source;
  std::string of;
};

// CLI11 keeps a check's name, so the name has the declaration: "offers 0 schedulers".
inline constexpr const char* kOffersPrefix = "offers ";

// Declares a source of an option's or argument's values, as a check that accepts every value. Several may follow each other. Inline because
// kvlab_sim has `run` without completion.
inline CLI::Validator offers(Offer source, const std::string& of = "") {
  CLI::Validator accepts([](std::string&) { return std::string(); }, "");
  return accepts.name(kOffersPrefix + std::to_string(static_cast<int>(source)) + " " + of);
}

// The sources declared. Without a declaration: the set of a CLI::IsMember, files for a text, nothing for a number.
std::vector<Offered> offers_of(CLI::Option& option);

}  // namespace kvlab
