#pragma once

#include <string>
#include <vector>

#include "app/commands/command.h"

namespace kvlab {

struct HelpArguments {
  std::string kind, name, shell;
  std::vector<std::string> cited, words;
  bool json = false;
};

void add_help_commands(CLI::App& app, HelpArguments& arguments, Command& chosen);

}  // namespace kvlab
