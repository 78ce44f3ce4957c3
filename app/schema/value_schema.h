#pragma once

#include <nlohmann/json.hpp>
#include <string>
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

}  // namespace kvlab
