#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

struct HelpArguments {
  std::string kind, name, shell;
  std::vector<std::string> cited, words;
  bool json = false;
};

// `choose` gets the chosen action, which returns the exit status.
void add_help_commands(CLI::App& app, HelpArguments& arguments, const std::function<void(std::function<int(std::ostream&)>)>& choose);

}  // namespace kvlab
