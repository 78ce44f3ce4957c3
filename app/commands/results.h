#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// `kvlab results`: lists results folders; with a name, the runs of one; `results join` and `results clean`.
struct ResultsCommand {
  std::vector<std::string> words;
  bool yes = false;      // clean: remove without asking
  bool every = false;    // a name: all its runs
  bool can_ask = false;  // a user reads the question and can type an answer
};

// Returns 0. InputError: no such results, or words that mean nothing.
int show_results(const ResultsCommand& command, std::istream& in, std::ostream& out);

// Adds the command, whose options write into the struct, which outlives `app`; `choose` is called where it is the chosen one.
void add_results_command(CLI::App& app, ResultsCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
