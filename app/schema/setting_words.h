#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// Continuations of `typed`, the begin of KEY=VALUE as --set takes it, each with its description: "trace." and "seed=" of "", "seed=" and
// others of "se", "scheduler=sarathi" of "scheduler=". Keys and values are those of experiment_schema(). of: the key of the mapping that
// the keys belong to, "trace"; "": the experiment. They all share what `typed` has before its last '.' or '='. Empty: no such key.
std::vector<std::pair<std::string, std::string>> setting_words(const std::string& of, const std::string& typed);

}  // namespace kvlab
