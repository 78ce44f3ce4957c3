#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "app/runs/sweep.h"

namespace kvlab {

// `kvlab merge`: joins the results of shards (`kvlab run --shard I/N`) as if one program had done all runs.
struct MergeCommand {
  std::string target;               // the experiment's file, or the results folder of the whole
  std::vector<std::string> shards;  // their results folders; none: those beside the results folder
  std::vector<std::string> set;     // as given to the shards
  SweepOptions sweep;
};

// Returns the exit status: 0; 1 if runs are missing. Their number is then printed, and tables are of the others.
int merge_shards(MergeCommand command, std::ostream& out, std::ostream& err);

// Adds the command, whose options write into the struct, which outlives `app`; `choose` is called where it is the chosen one.
void add_merge_command(CLI::App& app, MergeCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
