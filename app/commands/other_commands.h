#pragma once

#include "app/commands/command.h"

namespace kvlab {

// Adds every command but `run`; the chosen one is set as `chosen` when `app` has parsed. `app` keeps their arguments.
void add_other_commands(CLI::App& app, Command& chosen);

}  // namespace kvlab
