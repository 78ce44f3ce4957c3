#pragma once

#include "app/commands/command.h"

namespace kvlab {

// Adds the commands that compute with the engine or its kernels: calibrate, label, logits, tokenize, and `trace record`; `app` has `trace`.
// A command stores its function in `chosen`, which outlives `app`. The program that only simulates (app/simulation_only.cpp) adds none.
void add_engine_commands(CLI::App& app, Command& chosen);

}  // namespace kvlab
