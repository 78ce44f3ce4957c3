#pragma once

#include "app/commands/command.h"

namespace kvlab {

// Each adds subcommands that set `chosen` when parsed. `app` owns their arguments.
void add_calibrate_command(CLI::App& app, Command& chosen);
void add_characterize_command(CLI::App& app, Command& chosen);
void add_clean_command(CLI::App& app, Command& chosen);
void add_estimate_command(CLI::App& app, Command& chosen);
void add_export_command(CLI::App& app, Command& chosen);
void add_fetch_command(CLI::App& trace, Command& chosen);
void add_help_commands(CLI::App& app, Command& chosen);
void add_label_command(CLI::App& app, Command& chosen);
void add_merge_command(CLI::App& app, Command& chosen);
void add_pivot_command(CLI::App& app, Command& chosen);
void add_reproduce_command(CLI::App& app, Command& chosen);
void add_results_command(CLI::App& app, Command& chosen);
void add_run_command(CLI::App& app, Command& chosen);
void add_submit_command(CLI::App& app, Command& chosen);
// All but `run`.
void add_other_commands(CLI::App& app, Command& chosen);

}  // namespace kvlab
