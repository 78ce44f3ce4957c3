#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlab {

// The shells that completion_script() knows: bash, zsh, fish.
const std::vector<std::string>& completion_shells();

// A script that completes kvlab's command lines: commands and options of `app`, and names as `kvlab list KIND` prints them when a word is
// completed (with KVLAB_NO_BUILD=1, so that ./kvlab builds nothing meanwhile). InputError: another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace kvlab
