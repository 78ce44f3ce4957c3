#pragma once

#include <string>
#include <vector>

namespace kvlab {

// The shells that completion_script() knows: bash, zsh, fish.
const std::vector<std::string>& completion_shells();

// A script that completes kvlab's command lines in that shell. It asks the program for the words each time (`kvlab complete`), so that it
// fits every version of the program. InputError: another shell.
std::string completion_script(const std::string& shell);

}  // namespace kvlab
