#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// Continuations of a KEY=VALUE, with descriptions: "seed=" of "se", "scheduler=sarathi" of "scheduler=". of: the keys' mapping ("trace");
// "": the experiment. All share what `typed` has before its last '.' or '='. Empty: no such key.
std::vector<std::pair<std::string, std::string>> setting_words(const std::string& of, const std::string& typed);

}  // namespace kvlab
