#pragma once

#include <CLI/CLI.hpp>

#include "app/commands/characterize.h"
#include "app/commands/estimate.h"

namespace kvlab {

// Options write into `command`, which must outlive `app`.
CLI::App* add_estimate_command(CLI::App& app, EstimateCommand& command);
CLI::App* add_characterize_command(CLI::App& app, CharacterizeCommand& command);

}  // namespace kvlab
