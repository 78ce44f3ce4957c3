#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>

namespace kvlab {

struct CleanCommand {
  std::string folder;
  bool yes = false;
  bool can_ask = false;  // input and output are terminals
};

// Removes runs and files that the newest sweep does not use, after confirmation; only those named by kvlab's manifests.
int clean_results(const CleanCommand& command, std::istream& in, std::ostream& out);

CLI::App* add_clean_command(CLI::App& app, CleanCommand& command);

}  // namespace kvlab
