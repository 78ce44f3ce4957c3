#pragma once

#include <CLI/CLI.hpp>

namespace kvlab {

// Adds the front door's commands (./kvlab or the Python package) and their options, for completion. $KVLAB_FRONT_DOOR lists them, separated
// by blanks; unset: none.
void add_front_door(CLI::App& app);

}  // namespace kvlab
