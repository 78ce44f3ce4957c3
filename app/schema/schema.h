#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/schema/value_schema.h"

namespace kvlab {

// JSON Schema (draft 2020-12) from the keys that readers ask for and names in registries and folders. Any value may be a list, any number
// "${NAME}".
SchemaJson experiment_schema_json();
std::string experiment_schema();

// Continuations of a KEY=VALUE, with descriptions: "seed=" of "se", "scheduler=sarathi" of "scheduler=". of: the keys' mapping ("trace");
// "": the experiment. All share what `typed` has before its last '.' or '='. Empty: no such key.
std::vector<std::pair<std::string, std::string>> setting_words(const std::string& of, const std::string& typed);

}  // namespace kvlab
