#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>
#include <vector>

#include "app/runs/sweep/sweep.h"

namespace kvlab {

struct MergeCommand {
  std::string target;               // experiment file, or the whole's results folder
  std::vector<std::string> shards;  // results folders; empty: those next to the whole's
  std::vector<std::string> set;     // as given to the shards
  SweepOptions sweep;
};

// Returns 1 if runs are missing.
int merge_shards(MergeCommand command, std::ostream& out, std::ostream& err);

CLI::App* add_merge_command(CLI::App& app, MergeCommand& command);

}  // namespace kvlab
