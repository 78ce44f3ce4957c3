#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

struct ResultsCommand {
  std::vector<std::string> words;
  bool yes = false;
  bool every = false;    // all runs of a name
  bool can_ask = false;  // input and output are terminals
};

// Throws InputError for unknown results or words.
int show_results(const ResultsCommand& command, std::istream& in, std::ostream& out);

CLI::App* add_results_command(CLI::App& app, ResultsCommand& command);

}  // namespace kvlab
