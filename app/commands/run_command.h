#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>
#include <vector>

#include "app/runs/sweep/sweep.h"

namespace kvlab {

struct RunCommand {
  std::string file, model, shard, fast_forward = "on", vllm_args, sglang_args;
  std::vector<std::string> set;
  SweepOptions sweep;
};

int run_experiment(RunCommand command, std::ostream& out, std::ostream& err);

CLI::App* add_run_command(CLI::App& app, RunCommand& command);

}  // namespace kvlab
