#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>
#include <vector>

#include "app/export/export_format.h"

namespace kvlab {

struct ExportCommand {
  std::string folder, format, out;
  std::vector<std::string> runs;
  ExportOptions options;
};

// Throws InputError for an unknown format or run.
int export_results(const ExportCommand& command, std::ostream& out);

CLI::App* add_export_command(CLI::App& app, ExportCommand& command);

}  // namespace kvlab
