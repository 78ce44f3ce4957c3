#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/commands/offered_values.h"

namespace kvlab {

// Candidates for the last of `words`, without the program's name. Shells filter them.
Completion completion_of(CLI::App& app, const std::vector<std::string>& words);

// Lines "word<tab>description", then ":files", ":folders" or ":yaml" if a shell is to add paths.
std::string completion_as_text(const Completion& completion);

}  // namespace kvlab
