#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/asked_keys.h"

namespace kvlab {

using SchemaJson = nlohmann::ordered_json;

// The schema of a value by the documentation of its key: type, range, choices. Null: the documentation says nothing about it.
SchemaJson value_schema(const AskedKeys::Asked& doc);

// `value`, or a list of such values, which is an axis of a sweep, or ${NAME}, an environment variable.
SchemaJson swept(const SchemaJson& value);

SchemaJson any_of(std::vector<SchemaJson> forms);

// A reference to one of the schema's $defs.
SchemaJson ref_to(const std::string& def);

// One of `names`, or the path of a file or folder, or the id of a model hub: these have a slash or an extension.
SchemaJson name_or_path(const std::vector<std::string>& names);

// `NAME` or `{NAME: {parameters}}`: properties are the schemas of the parameters by name.
SchemaJson named_schema(const SchemaJson& properties);

// The description of a key for editors: meaning, unit and default.
std::string description_of(const AskedKeys::Asked& doc, const std::string& key);

}  // namespace kvlab
