#pragma once

#include <CLI/CLI.hpp>
#include <functional>
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

void add_results_command(CLI::App& app, ResultsCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
