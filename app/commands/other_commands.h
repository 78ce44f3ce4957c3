#pragma once

#include "app/commands/command.h"

namespace kvlab {

// All but `run`. Parsing sets `chosen`. `app` owns the arguments.
void add_other_commands(CLI::App& app, Command& chosen);

}  // namespace kvlab
