#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlab {

// Source of values for completion.
enum class Offer {
  kNames,        // of `kvlab list KIND`, KINDs separated by blanks; also "recipes" (without parts), "public_traces"
  kWords,        // given words, separated by blanks; only the first value of an argument
  kResults,      // results/NAME, and folders
  kResultNames,  // NAME
  kSettings,     // KEY=VALUE of an experiment, below the given key ("": top level)
  kAxes,         // in summary.csv of the first argument's results folder
  kAxisValues,   // AXIS=VALUE of the same
  kMetrics,      // of the same
  kRuns,         // IDs of the same
  kFiles,
  kFolders,
  kYamlFiles,
  kText  // no values
};

struct Offered {
  Offer source;
  std::string of;
};

// CLI11 keeps a check's name: "offers 0 schedulers".
inline constexpr const char* kOffersPrefix = "offers ";

// A check that accepts everything. Several may follow each other.
inline CLI::Validator offers(Offer source, const std::string& of = "") {
  CLI::Validator accepts([](std::string&) { return std::string(); }, "");
  return accepts.name(kOffersPrefix + std::to_string(static_cast<int>(source)) + " " + of);
}

// Without any: the words of a CLI::IsMember, files for text, none for a number.
std::vector<Offered> offers_of(CLI::Option& option);

}  // namespace kvlab
