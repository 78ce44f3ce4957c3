#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/config/asked_keys.h"

namespace kvlab {

using SchemaJson = nlohmann::ordered_json;

// Schema of a value by its key's documentation: type, range, choices. Null if undocumented.
SchemaJson value_schema(const AskedKeys::Asked& doc);

// `value`, a list of such values (a sweep's axis), or ${NAME} (environment variable).
SchemaJson swept(const SchemaJson& value);

SchemaJson any_of(std::vector<SchemaJson> forms);

// Reference into $defs.
SchemaJson ref_to(const std::string& def);

// One of `names`, or a path or hub id, which have a slash or an extension.
SchemaJson name_or_path(const std::vector<std::string>& names);

// `NAME` or `{NAME: {parameters}}`. properties: schemas of the parameters by name.
SchemaJson named_schema(const SchemaJson& properties);

// Meaning, unit and default of a key, for editors.
std::string description_of(const AskedKeys::Asked& doc, const std::string& key);

}  // namespace kvlab
