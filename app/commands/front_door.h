#pragma once

#include <CLI/CLI.hpp>

namespace kvlab {

// Adds the commands that a front door (./kvlab, or the Python package) has beside those of the program, with their options, for completion.
// It names them in $KVLAB_FRONT_DOOR, blanks between; without that variable nothing is added.
void add_front_door(CLI::App& app);

}  // namespace kvlab
