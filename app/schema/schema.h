#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/config/asked_keys.h"

namespace kvlab {

using SchemaJson = nlohmann::ordered_json;

// Type, range, choices. Null if undocumented.
SchemaJson value_schema(const AskedKeys::Asked& doc);

// `value`, a list of such values (an axis), or ${NAME}.
SchemaJson swept(const SchemaJson& value);

SchemaJson any_of(std::vector<SchemaJson> forms);

// Into $defs.
SchemaJson ref_to(const std::string& def);

// Paths and hub ids have a slash or an extension.
SchemaJson name_or_path(const std::vector<std::string>& names);

// `NAME` or `{NAME: {parameters}}`.
SchemaJson named_schema(const SchemaJson& properties);

// Meaning, unit and default.
std::string description_of(const AskedKeys::Asked& doc, const std::string& key);

// For a key without a text by readers, such as a mapping. path: "trace.generate". "": none.
std::string mapping_text(const std::string& path);

// Over every kind of run.
std::vector<AskedKeys::Asked> asked_of_experiments();

// JSON Schema (draft 2020-12) from the keys that readers ask for and names in registries and folders. Any value may be a list, any number
// "${NAME}".
SchemaJson experiment_schema_json();
std::string experiment_schema();

// Continuations of a KEY=VALUE, with descriptions: "seed=" of "se", "scheduler=sarathi" of "scheduler=". of: the keys' mapping ("trace");
// "": the experiment. All share what `typed` has before its last '.' or '='. Empty: no such key.
std::vector<std::pair<std::string, std::string>> setting_words(const std::string& of, const std::string& typed);

}  // namespace kvlab
