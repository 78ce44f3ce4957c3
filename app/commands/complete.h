#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/commands/offered_values.h"

namespace kvlab {

// The words that may replace the last of `words`, which are those of a command line without the program's name; the last is what is typed
// of it so far, "" at its begin. Commands, options and sets of values are those of `app`, other values by offers_of(). Shells compare the
// candidates with what is typed; only the kind of word decides here.
Completion completion_of(CLI::App& app, const std::vector<std::string>& words);

// One line per candidate, the word and its description with a tab between, then ":files", ":folders" or ":yaml" where a shell adds paths.
std::string completion_as_text(const Completion& completion);

}  // namespace kvlab
