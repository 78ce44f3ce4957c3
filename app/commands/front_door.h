#pragma once

#include <CLI/CLI.hpp>

namespace kvlab {

// Commands of ./kvlab or the Python package, for completion. $KVLAB_FRONT_DOOR lists them, separated by blanks; unset: none.
void add_front_door(CLI::App& app);

}  // namespace kvlab
