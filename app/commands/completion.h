#pragma once

#include <string>
#include <vector>

namespace kvlab {

// bash, zsh, fish.
const std::vector<std::string>& completion_shells();

// Calls `kvlab complete`, so it fits every version. Throws InputError for an unknown shell.
std::string completion_script(const std::string& shell);

}  // namespace kvlab
